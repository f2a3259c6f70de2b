"""A real Kafka broker: one JVM that is broker and KRaft controller, on the loopback address."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.stack.child_process import ChildProcess, Command, OnStart
from pipeline.stack.class_archive import sharing_options
from pipeline.stack.errors import StackError
from pipeline.stack.java import find_java
from pipeline.stack.java_process import java_command, java_environment
from pipeline.stack.kafka_configuration import (
    DATA_FOLDER,
    LOG4J_FILE,
    PROPERTIES_FILE,
    log4j_configuration,
    server_properties,
)
from pipeline.stack.kafka_jars import kafka_class_path
from pipeline.stack.locks import lock_within
from pipeline.stack.ports import HOST, choose_ports
from pipeline.stack.readiness import wait_ready

FORMATTED_MARKER = "formatted"
FORMAT_SECONDS = 60.0
READY_SECONDS = 90.0
STOP_SECONDS = 20.0
# An end at which the JVM writes its classes down.
ARCHIVE_SECONDS = 60.0
ORDERLY_EXIT = 128 + signal.SIGTERM
# After a SIGKILL the kernel needs a moment to take the process down, and its lock with it.
LOCK_SECONDS = 5.0
ADMIN_SECONDS = 1.0
JVM_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={LOG4J_FILE}")
# Only the quick compiler: what the optimising one does is lost at the end.
BRIEF_OPTIONS = ("-XX:TieredStopAtLevel=1",)


class KafkaServer:
    """A broker on a data directory. Its ports stay the same over restarts."""

    def __init__(
        self,
        directory: Path,
        log: Path,
        *,
        on_start: OnStart | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
        is_brief: bool = False,
        jvm_options: Sequence[str] | None = None,
    ) -> None:
        """``settings`` of the broker go over our own; ``jvm_options`` take the place of class data sharing.

        ``is_brief``: it lives for minutes, in which an optimising compiler costs more than it gives.
        """
        self.directory = directory
        self._settings = settings
        self._is_brief = is_brief
        self._jvm_options = jvm_options
        self.log = log
        self._on_start = on_start
        self._process: ChildProcess | None = None
        self._port = 0

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; valid from the first `launch` on."""
        return f"{HOST}:{self._port}"

    @property
    def process(self) -> ChildProcess:
        """The JVM. Raises StackError before the first start."""
        if self._process is None:
            raise StackError("kafka was never started")
        return self._process

    def start(self) -> None:
        """Start it and wait until it answers. Raises StackError."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Format the directory if it is new and start the JVM, without waiting for it."""
        class_path = kafka_class_path()
        sharing = self._sharing_options(class_path) if self._jvm_options is None else []
        options = [*JVM_OPTIONS, *sharing, *(self._jvm_options or []), *(BRIEF_OPTIONS if self._is_brief else [])]
        command = [*java_command(class_path, options), "kafka.Kafka", PROPERTIES_FILE]
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = lock_within(self.directory / "lock", LOCK_SECONDS)
        if lock is None:
            raise StackError(f"another Kafka runs on {self.directory}: end it, or use another folder")
        try:
            self._port, controller_port = choose_ports(self.directory / "ports", 2)
            properties = server_properties(port=self._port, controller_port=controller_port, more=self._settings)
            (self.directory / PROPERTIES_FILE).write_text(properties, encoding="ascii")
            (self.directory / LOG4J_FILE).write_text(log4j_configuration(), encoding="ascii")
            if not (self.directory / FORMATTED_MARKER).exists():
                self._format(java_command(class_path, [*JVM_OPTIONS, *sharing, *BRIEF_OPTIONS]))
            if self._process is None:
                self._process = ChildProcess("kafka", self._command(command), on_start=self._on_start)
            # The JVM inherits the lock and keeps it as long as it lives, whatever becomes of us.
            self._process.start(keep_open=[lock])
        finally:
            os.close(lock)

    def wait_ready(self) -> None:
        """Return when the broker answers an admin client. Raises StackError."""
        # log_level 0: a client that knocks too early would report each refusal on stderr.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

        def answers() -> bool:
            try:
                return len(admin.list_topics(timeout=ADMIN_SECONDS).brokers) == 1
            except KafkaException:
                return False

        wait_ready(self.process, answers, READY_SECONDS)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after a deadline. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.terminate(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()

    def restart(self) -> None:
        """Stop it if it runs; start it on the same data and ports."""
        self.stop()
        self.start()

    def _command(self, arguments: Sequence[str]) -> Command:
        return Command(arguments=arguments, environment=java_environment(), directory=self.directory, log=self.log)

    def _format(self, java: Sequence[str]) -> None:
        # What an interrupted attempt has left is not a whole log.
        shutil.rmtree(self.directory / DATA_FOLDER, ignore_errors=True)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        # With "=", because an id may begin with "-", which would be read as an option of its own.
        arguments = ["format", "--standalone", f"--cluster-id={cluster_id}", "--config", PROPERTIES_FILE]
        try:
            done = subprocess.run(
                [*java, "kafka.tools.StorageTool", *arguments],
                cwd=self.directory,
                env=java_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=FORMAT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise StackError(f"formatting {self.directory} for Kafka took longer than {FORMAT_SECONDS:g} s") from None
        if done.returncode != 0:
            raise StackError(f"cannot format {self.directory} for Kafka: {(done.stdout + done.stderr).strip()}")
        (self.directory / FORMATTED_MARKER).touch()

    def _sharing_options(self, class_path: Sequence[Path]) -> list[str]:
        def run_once(folder: Path, options: Sequence[str]) -> None:
            server = KafkaServer(folder, folder / "kafka.log", on_start=self._on_start, jvm_options=options)
            try:
                server.start()
                # A JVM that has no room for what it writes at its end exits otherwise.
                if server.process.terminate(ARCHIVE_SECONDS) != ORDERLY_EXIT:
                    raise StackError("the JVM did not end in order")
            finally:
                server.stop()

        return sharing_options(find_java(), class_path[0].parent, run_once)
