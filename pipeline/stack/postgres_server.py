"""A real PostgreSQL server with logical replication, on a TCP port of the loopback address."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from pipeline.stack.child_process import ChildProcess, Command, OnStart
from pipeline.stack.errors import StackError
from pipeline.stack.locks import lock_within
from pipeline.stack.ports import HOST, choose_ports
from pipeline.stack.postgres_programs import PostgresPrograms, find_postgres
from pipeline.stack.readiness import wait_ready
from pipeline.stack.system_user import SystemUser, root_place, server_user

SUPERUSER = "postgres"
DATABASE = "outrider"
INITDB_SECONDS = 120.0
READY_SECONDS = 60.0
STOP_SECONDS = 20.0
CONNECT_SECONDS = 2
# After a SIGKILL of the server its backends need a moment to notice; they hold the lock till then.
LOCK_SECONDS = 15.0


class PostgresServer:
    """A server on a data directory. Port and password stay the same over restarts.

    `fast` turns off what protects against a crash of the machine (not of the server): for tests.
    """

    def __init__(self, directory: Path, log: Path, *, fast: bool = False, on_start: OnStart | None = None) -> None:
        self.directory = directory
        self.log = log
        self._fast = fast
        self._on_start = on_start
        self._process: ChildProcess | None = None
        self._port = 0

    @cached_property
    def _user(self) -> SystemUser | None:
        return server_user()

    @cached_property
    def place(self) -> Path:
        """The folder of the data directory: `directory`, unless the server's user cannot get there.

        That is so under a root's home; opening the folders above to everybody would be no service.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o711)
        if self._user is None or self._user.can_reach(self.directory):
            return self.directory
        name = hashlib.sha256(os.fsencode(self.directory.absolute())).hexdigest()[:16]
        return root_place() / f"data-{name}"

    @property
    def data_directory(self) -> Path:
        """PostgreSQL's own folder; it belongs to the user who runs the server."""
        return self.place / "data"

    @property
    def dsn(self) -> str:
        """Connection URI of the superuser, with the password; valid from `start` on."""
        return self.dsn_for(user=SUPERUSER, password=self._password(), database=DATABASE)

    def dsn_for(self, *, user: str, password: str, database: str = DATABASE) -> str:
        """Connection URI of another role or database of this server."""
        words = (quote(word, safe="") for word in (user, password, database))
        return "postgresql://{}:{}@{host}:{port}/{}".format(*words, host=HOST, port=self._port)

    @property
    def process(self) -> ChildProcess:
        """The postmaster. Raises StackError before the first start."""
        if self._process is None:
            raise StackError("postgres was never started")
        return self._process

    def start(self) -> None:
        """Start it and wait until it answers. Raises StackError."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Initialise the directory if it is new and start the server, without waiting for it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = lock_within(self.directory / "lock", LOCK_SECONDS)
        if lock is None:
            raise StackError(f"another PostgreSQL runs on {self.directory}: end it, or use another folder")
        try:
            programs = find_postgres(self._user)
            if not self.data_directory.exists():
                self._initialise(programs)
            self._check_version(programs)
            # We hold the lock that every server of this directory inherits: nobody runs on it, and a
            # pid file left by a crash could only name a stranger that has its number now.
            (self.data_directory / "postmaster.pid").unlink(missing_ok=True)
            (self._port,) = choose_ports(self.directory / "ports", 1)
            command = self._command(programs)
            if self._process is None:
                self._process = ChildProcess("postgres", command, on_start=self._on_start)
            self._process.start(command, keep_open=[lock])
        finally:
            os.close(lock)

    def wait_ready(self) -> None:
        """Return when the server answers a query in the project's database. Raises StackError."""
        maintenance = self.dsn_for(user=SUPERUSER, password=self._password(), database="postgres")

        def answers() -> bool:
            try:
                with psycopg.connect(maintenance, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
                    exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                    if exists.fetchone() is None:
                        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
                return True
            except psycopg.OperationalError:
                return False

        wait_ready(self.process, answers, READY_SECONDS)

    def stop(self) -> None:
        """Fast shutdown, and SIGKILL after a deadline. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.terminate(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL the postmaster, and wait for its end; its backends notice by themselves."""
        self.process.kill()

    def restart(self) -> None:
        """Stop it if it runs; start it on the same data and port."""
        self.stop()
        self.start()

    def _command(self, programs: PostgresPrograms) -> Command:
        settings: dict[str, object] = {
            "listen_addresses": HOST,
            "port": self._port,
            # TCP only: a socket's path has a length limit that a checkout's folder may exceed.
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_wal_senders": 20,
            "max_replication_slots": 20,
            "max_connections": 200,
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if self._fast:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        arguments = [str(programs.server), "-D", str(self.data_directory)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        return Command(
            arguments=arguments,
            environment=_environment(),
            directory=self.data_directory,
            log=self.log,
            user=self._user,
            # SIGTERM would wait for clients to leave by themselves.
            stop_signal=signal.SIGINT,
        )

    def _initialise(self, programs: PostgresPrograms) -> None:
        """Make the data directory under another name first: one that exists is whole."""
        self.place.mkdir(parents=True, exist_ok=True)
        self.place.chmod(0o711)
        self._new_password()
        partial = self.place / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        with tempfile.NamedTemporaryFile("w", prefix="initdb-", dir=self.place) as password_file:
            password_file.write(self._password())
            password_file.flush()
            if self._user is not None:
                for path in (partial, Path(password_file.name)):
                    os.chown(path, self._user.uid, self._user.gid)
            self._run_initdb(programs, partial, password_file.name)
        partial.rename(self.data_directory)

    def _run_initdb(self, programs: PostgresPrograms, data: Path, password_file: str) -> None:
        arguments = ["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions"]
        arguments += ["--username", SUPERUSER, "--pwfile", password_file, "--pgdata", str(data)]
        if self._fast:
            arguments.append("--no-sync")
        credentials = self._user.popen_arguments() if self._user else {}
        try:
            done = subprocess.run(
                [programs.initdb, *arguments],
                env=_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=INITDB_SECONDS,
                **credentials,
            )
        except subprocess.TimeoutExpired:
            raise StackError(f"initdb in {data} took longer than {INITDB_SECONDS:g} s") from None
        if done.returncode != 0:
            raise StackError(f"initdb in {data} failed: {(done.stdout + done.stderr).strip()}")

    def _check_version(self, programs: PostgresPrograms) -> None:
        major = (self.data_directory / "PG_VERSION").read_text(encoding="ascii").strip()
        if major != str(programs.major):
            raise StackError(
                f"the data in {self.data_directory} is of PostgreSQL {major}, the programs in "
                f"{programs.folder} are {programs.major}: remove the data, or install the other version"
            )

    @property
    def _password_file(self) -> Path:
        return self.directory / "password"

    def _new_password(self) -> None:
        self._password_file.unlink(missing_ok=True)
        descriptor = os.open(self._password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(24))

    def _password(self) -> str:
        return self._password_file.read_text(encoding="ascii")


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT and the like of the caller must not reach this server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
