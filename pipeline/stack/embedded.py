"""Kafka and PostgreSQL together, for the demo, the tests and `outrider up`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.stack.child_process import ChildProcess
from pipeline.stack.guard import Guard
from pipeline.stack.kafka_server import KafkaServer
from pipeline.stack.postgres_server import PostgresServer
from pipeline.stack.process_identity import ProcessIdentity

SERVERS = ("kafka", "postgres")


class EmbeddedStack:
    """Starts the servers, and ends them with the process that started them, however that ends.

    `directory` keeps the data; without one it is in a temporary folder that `stop` removes.
    `logs` is the folder of the log files, if they are not to be beside the data. `fast` gives up
    PostgreSQL's protection against a crash of the machine, and `is_brief` fits the broker for a life of minutes: for tests.
    `servers` leaves one out.

    Raises StackError, after ending what had started, when a server cannot run.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        logs: Path | None = None,
        fast: bool = False,
        is_brief: bool = False,
        servers: Collection[str] = SERVERS,
    ) -> None:
        self._is_temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="outrider-")) if directory is None else directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        # PostgreSQL may have to run as another user; what is secret inside has a mode of its own.
        self.directory.chmod(0o711)
        self.logs = logs or self.directory / "logs"
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._servers = frozenset(servers)
        self._guard: Guard | None = None
        self.kafka = KafkaServer(
            self.directory / "kafka", self.logs / "kafka.log", on_start=self.watch, is_brief=is_brief
        )
        self.postgres = PostgresServer(
            self.directory / "postgres", self.logs / "postgres.log", fast=fast, on_start=self.watch
        )

    @property
    def postgres_dsn(self) -> str:
        """Superuser's connection URI of the database `outrider`."""
        return self.postgres.dsn

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's `host:port`."""
        return self.kafka.bootstrap_servers

    @property
    def temporary_folders(self) -> list[Path]:
        """What `stop` removes; empty when the data is kept."""
        if not self._is_temporary:
            return []
        return [self.directory, *([self.postgres.place] if "postgres" in self._servers else [])]

    @property
    def processes(self) -> dict[str, ChildProcess]:
        """The started servers by name."""
        servers: dict[str, KafkaServer | PostgresServer] = {"kafka": self.kafka, "postgres": self.postgres}
        return {name: servers[name].process for name in SERVERS if name in self._servers}

    def start(self) -> None:
        """Start the servers and wait until they answer."""
        self._guard = Guard()
        for folder in self.temporary_folders:
            self._guard.remove(folder)
        try:
            # The JVM warms up while PostgreSQL is initialised.
            if "kafka" in self._servers:
                self.kafka.launch()
            if "postgres" in self._servers:
                self.postgres.launch()
                self.postgres.wait_ready()
            if "kafka" in self._servers:
                self.kafka.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the servers, and remove temporary data. May be called again."""
        self.kafka.stop()
        self.postgres.stop()
        for folder in self.temporary_folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def watch(self, process: ProcessIdentity, stop_signal: signal.Signals) -> None:
        """Have a process ended when this one dies: the `on_start` of processes beside the servers."""
        if self._guard is not None:
            self._guard.end(process, stop_signal)

    def detach(self) -> None:
        """Let the servers, and what `watch` was told of, live on after this process."""
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
