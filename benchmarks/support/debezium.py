"""The reference that the connector is measured against: real Debezium on real Kafka Connect.

It reads the same outbox through a slot of its own and writes records of the same key, value and headers,
exactly once. `TUNINGS` names settings from the peers' own advice; what suits a drain does not suit latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from pipeline.stack.connect_server import ConnectServer
from pipeline.stack.embedded import EmbeddedStack

NAME: Final = "outrider-dispatch"
RUNNING_SECONDS: Final = 120.0
# What such a worker is given in production: large queues need room, and two cores let G1 collect beside the task.
LARGE_HEAP: Final = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC")

_BATCHES: Final = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "producer.override.compression.type": "lz4",
    "producer.override.batch.size": str(128 * 1024),
}
TUNINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "throughput": {**_BATCHES, "poll.interval.ms": "10", "producer.override.linger.ms": "5"},
    "latency": {**_BATCHES, "poll.interval.ms": "1", "producer.override.linger.ms": "0"},
}


class Debezium:
    """A worker with one connector from ``outrider.dispatch_outbox`` to ``topic``.

    Its slot begins where it first runs: rows that were committed before are not read. Raises StackError where the
    worker or the connector fails.
    """

    def __init__(
        self,
        stack: EmbeddedStack,
        folder: Path,
        *,
        topic: str,
        publication: str,
        slot: str = "debezium",
        tuning: Mapping[str, str] = TUNINGS["throughput"],
    ) -> None:
        database = conninfo_to_dict(stack.postgres_dsn)
        self.config = connector_config(database, topic=topic, publication=publication, slot=slot) | dict(tuning)
        self.server = ConnectServer(
            folder / "connect",
            folder / "connect.log",
            bootstrap_servers=stack.bootstrap_servers,
            environment={"DATABASE_PASSWORD": str(database.get("password", ""))},
            jvm_options=LARGE_HEAP,
            on_start=stack.watch,
        )

    def start(self) -> None:
        """Start the worker; return when the connector's task runs (and so its slot exists)."""
        self.server.start()
        self.server.client.put(NAME, self.config)
        self.server.client.wait_running(NAME, RUNNING_SECONDS)

    def restart(self) -> None:
        """Start the worker again, after :meth:`kill` or :meth:`end`; it goes on where it was, cold."""
        self.server.start()
        self.resume()

    def tune(self, tuning: Mapping[str, str]) -> None:
        """Change settings, which starts the task anew in the same, warm JVM."""
        self.config |= dict(tuning)
        self.server.client.put(NAME, self.config)
        self.server.client.wait_running(NAME, RUNNING_SECONDS)

    def stop(self) -> None:
        """Leave the slot, so that rows gather; the JVM stays, warm."""
        self.server.client.stop(NAME)

    def resume(self) -> None:
        """Go on after :meth:`stop`."""
        self.server.client.resume(NAME)

    def kill(self) -> None:
        """SIGKILL the worker."""
        self.server.kill()

    def end(self) -> None:
        """End the worker."""
        self.server.stop()


def connector_config(database: Mapping[str, object], *, topic: str, publication: str, slot: str) -> dict[str, str]:
    """The connector's settings before any tuning. ``database`` is what libpq's connection string says."""
    strings = "org.apache.kafka.connect.storage.StringConverter"
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": "message_id",
        "table.field.event.key": "destination_id",
        "table.field.event.payload": "payload",
        "table.fields.additional.placement": ",".join(
            f"{column}:header"
            for column in ("delivery_id", "dispatch_seq", "event_id", "event_type", "content_type", "reason")
        ),
        "route.by.field": "destination_id",
        "route.topic.regex": ".*",
        "route.topic.replacement": topic,
    }
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "exactly.once.support": "required",
        "database.hostname": str(database["host"]),
        "database.port": str(database["port"]),
        "database.user": str(database["user"]),
        "database.password": "${env:DATABASE_PASSWORD}",
        "database.dbname": str(database["dbname"]),
        "topic.prefix": "outrider",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "table.include.list": "outrider.dispatch_outbox",
        "snapshot.mode": "no_data",
        "skipped.operations": "u,d,t",
        "tombstones.on.delete": "false",
        "extended.headers.enabled": "false",
        "key.converter": strings,
        "header.converter": strings,
        "value.converter": "io.debezium.converters.BinaryDataConverter",
        "transforms": "outbox",
        **{f"transforms.outbox.{name}": value for name, value in router.items()},
    }
