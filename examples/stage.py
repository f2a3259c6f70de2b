"""Where the examples play: real Kafka and PostgreSQL, the program's components, and a receiver.

``embedded_stage`` starts all of it with temporary data; the tests put the same stage on servers of theirs.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psycopg
from psycopg import sql

from examples.receiver import Receiver, Request
from pipeline.ledger.migrate import migrate_up
from pipeline.settings import load_settings
from pipeline.stack.child_process import ChildProcess
from pipeline.stack.component import component_process, program, program_environment
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.login_roles import LOGIN_OF_COMPONENT, create_login_roles
from pipeline.stack.ports import free_ports
from topics.admin import TopicAdmin
from topics.declarations import declare_topics
from topics.difference import differences

DEADLINE_SECONDS: Final = 60.0
STOP_SECONDS: Final = 40.0
PARTITIONS: Final = 4

# So that what a killed worker held is found again within seconds.
HURRIED: Final[Mapping[str, object]] = {
    "worker_lease_margin_seconds": 0.5,
    "worker_session_timeout_seconds": 2.0,
    "worker_drain_seconds": 5.0,
    "reconciler_interval_seconds": 0.2,
}


class ProofError(Exception):
    """Something that an example is to prove does not hold."""


class StartComponent(Protocol):
    """Starts a component; `settings` go over the stage's."""

    def __call__(self, component: str, **settings: object) -> ChildProcess: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a story works with. DSNs hold passwords."""

    admin: psycopg.Connection
    """Owns the business tables, and sees all; each statement is a commit."""
    admin_dsn: str
    dsns: Mapping[str, str]
    """Of logins by group: application, operator, reconciler …"""
    settings: Mapping[str, object]
    start: StartComponent
    receiver: Receiver
    say: Callable[[str], None]
    """Takes a line for each thing that is proved."""

    def make_schema(self, path: Path) -> None:
        """The example's own tables."""
        self.admin.execute(path.read_bytes())

    def login(self, group: str) -> sql.Identifier:
        """The role that a group's components log in as."""
        return sql.Identifier(str(psycopg.conninfo.conninfo_to_dict(self.dsns[group])["user"]))

    def add_destination(self, destination_id: str, *, subscribe: str | None = None, **values: object) -> str:
        """A destination at the receiver, as ``outrider destination add`` makes it; returns its secret."""
        row: dict[str, object] = {
            "destination_id": destination_id,
            "url": self.receiver.url(destination_id),
            "allowed_networks": ["127.0.0.0/8"],
            "start_rate_per_second": 1_000,
            "burst": 1_000,
            "concurrency": 32,
            "retry_first_delay_seconds": 0.2,
            "retry_factor": 1,
            **values,
        }
        columns = sql.SQL(", ").join(map(sql.Identifier, row))
        places = sql.SQL(", ").join(map(sql.Placeholder, row))
        self.admin.execute(sql.SQL("insert into outrider.destination ({}) values ({})").format(columns, places), row)
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self.admin.execute(
            "insert into outrider.destination_secret (destination_id, secret) values (%s, %s)", (destination_id, secret)
        )
        if subscribe is not None:
            self.admin.execute("insert into outrider.subscription values (%s, %s)", (destination_id, subscribe))
        self.receiver.trust(destination_id, secret)
        return secret

    def outrider(self, *arguments: str, group: str = "operator", check: bool = True) -> str:
        """Run a command of the program under a group's login; its output. With ``check`` ProofError where it fails."""
        process = self.begin(*arguments, group=group)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        if check and process.returncode != 0:
            raise ProofError(f"outrider {' '.join(arguments)}: {output}")
        return output

    def begin(self, *arguments: str, group: str = "operator") -> subprocess.Popen[str]:
        """The same as a process that may be killed; both of its outputs are one."""
        settings = {**self.settings, "postgres_dsn": self.dsns[group]}
        return subprocess.Popen(  # noqa: S603 - the program itself
            program(*arguments),
            env={**program_environment(settings, inherit_settings=False), "USER": os.environ.get("USER", "example")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def value(self, query: str, *parameters: object) -> object:
        """The first column of the first row."""
        row = self.admin.execute(query.encode(), parameters).fetchone()
        return None if row is None else row[0]

    def states(self) -> dict[str, int]:
        """Deliveries by state."""
        return dict(self.admin.execute("select state, count(*) from outrider.delivery group by 1").fetchall())

    def kill_after_acceptance(self) -> tuple[Request, ChildProcess]:
        """Start a worker, and kill it when the receiver has applied a request but not answered; both of them."""
        applied, free = threading.Event(), threading.Event()

        def after(_: str) -> None:
            applied.set()
            free.wait(30)

        self.receiver.after = after
        worker = self.start("worker")
        self.wait(applied.is_set, "the receiver has accepted")
        (accepted, *_) = self.receiver.requests
        worker.kill()
        self.receiver.after = lambda destination_id: None
        free.set()
        return accepted, worker

    def wait(self, condition: Callable[[], object], what: str, seconds: float = DEADLINE_SECONDS) -> None:
        """Poll until it holds. Raises ProofError that says ``what`` was awaited."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ProofError(f"not within {seconds:g} s: {what}")
            time.sleep(0.02)

    def prove(self, holds: object, what: str) -> None:
        """Say it, if it holds. Raises ProofError otherwise."""
        if not holds:
            raise ProofError(f"it does not hold that {what}")
        self.say(what)


@contextmanager
def embedded_stage(say: Callable[[str], None], *, sources: Path) -> Iterator[Stage]:
    """A stage with temporary data; everything on it ends after the block. Raises StackError where a server cannot run."""
    started: list[ChildProcess] = []
    with (
        tempfile.TemporaryDirectory(prefix="outrider-example-") as folder,
        EmbeddedStack(fast=True, is_brief=True) as servers,
    ):
        migrate_up(servers.postgres_dsn)
        settings: dict[str, object] = {
            **HURRIED,
            "postgres_dsn": servers.postgres_dsn,
            "kafka_bootstrap_servers": servers.bootstrap_servers,
            "topic_replication_factor": 1,
            "topic_min_insync_replicas": 1,
            "dispatch_partitions": PARTITIONS,
            "attempts_partitions": PARTITIONS,
            "sources_directory": sources,
        }
        make_topics(settings)
        dsns = {
            group: servers.postgres.dsn_for(user=role, password=password)
            for group, (role, password) in create_login_roles(servers.postgres_dsn).items()
        }

        def start(component: str, **more: object) -> ChildProcess:
            (health_port,) = free_ports(1)
            name = f"{component}-{len(started) + 1}"
            process = component_process(
                component,
                {**settings, "postgres_dsn": dsns[LOGIN_OF_COMPONENT[component]], "health_port": health_port, **more},
                name=name,
                log=Path(folder) / f"{name}.log",
                on_start=servers.watch,
            )
            started.append(process)
            process.start()
            return process

        receiver = Receiver()
        try:
            with psycopg.connect(servers.postgres_dsn, autocommit=True) as admin:
                yield Stage(
                    admin=admin,
                    admin_dsn=servers.postgres_dsn,
                    dsns=dsns,
                    settings=settings,
                    start=start,
                    receiver=receiver,
                    say=say,
                )
        finally:
            for process in reversed(started):
                process.terminate(STOP_SECONDS)
            receiver.close()


def make_topics(settings: Mapping[str, object]) -> None:
    """Every declared topic, where there is none."""
    loaded = load_settings(**settings)
    declared = declare_topics(
        prefix=loaded.topic_prefix,
        dispatch_partitions=loaded.dispatch_partitions,
        attempts_partitions=loaded.attempts_partitions,
        replication_factor=loaded.topic_replication_factor,
        min_insync_replicas=loaded.topic_min_insync_replicas,
    )
    admin = TopicAdmin(loaded.kafka)
    admin.apply(declared, differences(declared, admin.describe(topic.name for topic in declared)))
