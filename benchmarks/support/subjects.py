"""The connector and its reference under one set of verbs: both read the same outbox through slots of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from benchmarks.support.debezium import TUNINGS, Debezium
from benchmarks.support.outbox import DEBEZIUM_TOPIC, Outbox, wait
from benchmarks.support.processes import cpu_seconds, memory
from pipeline.stack.component import component_process
from pipeline.stack.readiness import says_ready


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process since its start."""

    cpu_seconds: float
    rss_mib_max: float


class Subject(Protocol):
    """Something that publishes the outbox. ``start`` returns once it streams; a stop leaves its slot behind."""

    name: str
    topic: str

    def start(self) -> None: ...
    def leave(self) -> None: ...
    def launch(self) -> None:
        """Start it again, without waiting for it."""

    def kill(self) -> None: ...
    def end(self) -> None: ...
    def usage(self) -> Usage: ...


class OurConnector:
    """`outrider run connector` as a process of its own. It has nothing to keep warm."""

    name = "outrider"

    def __init__(self, outbox: Outbox) -> None:
        self.topic = outbox.topic
        self._port = outbox.health_port
        self._process = component_process(
            "connector",
            outbox.values,
            name="connector",
            log=outbox.folder / "connector.log",
            on_start=outbox.stack.watch,
        )

    def start(self) -> None:
        self._process.start()
        wait(self._is_ready)

    def launch(self) -> None:
        self._process.start()

    def leave(self) -> None:
        self._process.terminate(30)

    def end(self) -> None:
        self._process.terminate(30)

    def kill(self) -> None:
        self._process.kill()

    def usage(self) -> Usage:
        return usage_of(self._process.pid)

    def _is_ready(self) -> bool:
        if not self._process.is_running:
            raise SystemExit(f"the connector ended\n{self._process.log_tail()}")
        return says_ready(self._port)


class RealDebezium:
    """Debezium on Connect, tuned for throughput at first."""

    name = "debezium"
    topic = DEBEZIUM_TOPIC

    def __init__(self, outbox: Outbox) -> None:
        self._debezium = Debezium(
            outbox.stack, outbox.folder, topic=DEBEZIUM_TOPIC, publication=outbox.settings.connector_publication
        )

    def start(self) -> None:
        self._debezium.start()

    def launch(self) -> None:
        self._debezium.server.launch()

    def restart(self) -> None:
        """Cold: a new JVM."""
        self._debezium.restart()

    def resume(self) -> None:
        """Warm: the same JVM goes on."""
        self._debezium.resume()

    def tune(self, tuning: str) -> None:
        self._debezium.tune(TUNINGS[tuning])

    def leave(self) -> None:
        self._debezium.stop()

    def end(self) -> None:
        self._debezium.end()

    def kill(self) -> None:
        self._debezium.kill()

    def usage(self) -> Usage:
        return usage_of(self._debezium.server.process.pid)


def usage_of(pid: int) -> Usage:
    return Usage(cpu_seconds(pid), memory(pid).peak)
