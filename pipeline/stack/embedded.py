"""Kafka and PostgreSQL together, for the demo, the tests and `outrider up`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.stack.guard import Guard
from pipeline.stack.kafka_server import KafkaServer
from pipeline.stack.postgres_server import PostgresServer
from pipeline.stack.process_identity import ProcessIdentity


class EmbeddedStack:
    """Starts both servers, and ends them with the process that started them.

    `directory` keeps the data; without one it is in a temporary folder that `stop` removes.
    `fast` gives up PostgreSQL's protection against a crash of the machine: for tests.
    `guarded` ends the servers when this process dies without stopping them.

    Raises StackError, after ending what had started, when a part cannot run.
    """

    def __init__(self, directory: Path | None = None, *, fast: bool = False, guarded: bool = True) -> None:
        self._ephemeral = directory is None
        self.directory = (
            Path(tempfile.mkdtemp(prefix="outrider-")) if directory is None else directory.absolute()
        )
        if self._ephemeral:
            # PostgreSQL may have to run as another user; what is secret inside has modes of its own.
            self.directory.chmod(0o711)
        self._guarded = guarded
        self._guard: Guard | None = None
        logs = self.directory / "logs"
        self.kafka = KafkaServer(self.directory / "kafka", logs / "kafka.log", on_start=self.watch)
        self.postgres = PostgresServer(
            self.directory / "postgres", logs / "postgres.log", fast=fast, on_start=self.watch
        )

    @property
    def postgres_dsn(self) -> str:
        """Superuser's connection string of the database `outrider`."""
        return self.postgres.dsn

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's `host:port`."""
        return self.kafka.bootstrap_servers

    def start(self) -> None:
        """Start both and wait until both answer."""
        try:
            if self._guarded:
                self._guard = Guard()
                if self._ephemeral:
                    self._guard.remove(self.directory)
            # The JVM warms up while PostgreSQL is initialised.
            self.kafka.launch()
            self.postgres.launch()
            self.postgres.wait_ready()
            self.kafka.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End both, and remove temporary data. May be called again."""
        self.kafka.stop()
        self.postgres.stop()
        if self._ephemeral:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def watch(self, process: ProcessIdentity, stop_signal: signal.Signals) -> None:
        """Have a process ended when this one dies; for `on_start` of further processes."""
        if self._guard is not None:
            self._guard.end(process, stop_signal)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
