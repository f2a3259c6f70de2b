"""One stack with the schema and topics, rows for the outbox, and what lies committed in a topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from pipeline.ledger.migrate import migrate_up
from pipeline.settings import Settings, load_settings
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.ports import free_ports
from topics.admin import TopicAdmin
from topics.declarations import declare_topics
from topics.difference import differences

DEADLINE_SECONDS: Final = 600.0
PAYLOAD_BYTES: Final = 400
TRANSACTION_ROWS: Final = 1_000
PARTITIONS: Final = 4
DEBEZIUM_TOPIC: Final = "debezium.dispatch"
LOOK_SECONDS: Final = 0.05
QUIET_SECONDS: Final = 1.5

_INSERT = """
insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type,
                                      content_type, headers, payload, reason)
select gen_random_uuid(), 'delivery-' || n, 1, 'destination-' || n %% 16, 'event-' || n, 'media.processed',
       'application/json', '{}', convert_to(rpad(md5(n::text), %(payload)s, md5((n * 7)::text)), 'UTF8'), 'admitted'
from generate_series(1, %(rows)s) n
"""


class Outbox:
    """The source and the topics, for whichever connector reads and writes them."""

    def __init__(self, stack: EmbeddedStack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        (self.health_port,) = free_ports(1)
        self.values: dict[str, object] = {
            "postgres_dsn": stack.postgres_dsn,
            "kafka_bootstrap_servers": stack.bootstrap_servers,
            "topic_replication_factor": 1,
            "topic_min_insync_replicas": 1,
            "dispatch_partitions": PARTITIONS,
            "attempts_partitions": PARTITIONS,
            "connector_slot": "bench",
            "health_port": self.health_port,
        }
        self.settings: Settings = load_settings(**self.values)
        self.topic = self.settings.name("dispatch")
        migrate_up(self.settings.postgres_conninfo)
        admin = TopicAdmin(self.settings.kafka)
        declared = declare_topics(
            prefix=self.settings.topic_prefix,
            dispatch_partitions=PARTITIONS,
            attempts_partitions=PARTITIONS,
            replication_factor=1,
            min_insync_replicas=1,
        )
        admin.apply(declared, differences(declared, {}))
        self._create_topic(DEBEZIUM_TOPIC)
        self.connection = psycopg.connect(stack.postgres_dsn, autocommit=True)
        self._ends = reader(stack.bootstrap_servers)

    def close(self) -> None:
        self._ends.close()
        self.connection.close()

    def insert(self, rows: int, transaction_rows: int = TRANSACTION_ROWS) -> None:
        """Commit so many rows of PAYLOAD_BYTES for 16 destinations."""
        for first in range(0, rows, transaction_rows):
            count = min(transaction_rows, rows - first)
            self.connection.execute(_INSERT, {"payload": PAYLOAD_BYTES, "rows": count})

    def end(self, topic: str) -> int:
        """The sum of the partitions' ends for readers of committed records: rows, and a mark for each commit."""
        return sum(
            self._ends.get_watermark_offsets(TopicPartition(topic, partition), 30)[1] for partition in range(PARTITIONS)
        )

    def ends(self, topic: str) -> list[TopicPartition]:
        """Each partition with its end."""
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        for partition in partitions:
            partition.offset = self._ends.get_watermark_offsets(partition, 30)[1]
        return partitions

    def count_from(self, starts: list[TopicPartition]) -> int:
        """How many committed records lie behind these places, counted one by one."""
        ends = {partition.partition: partition.offset for partition in self.ends(starts[0].topic)}
        wanted = [start for start in starts if ends[start.partition] > start.offset]
        consumer = reader(self.stack.bootstrap_servers)
        consumer.assign(wanted)
        unfinished, rows = {start.partition for start in wanted}, 0
        while unfinished:
            for message in consumer.consume(10_000, 10):
                if message.error() is None:
                    rows += 1
                else:  # the end of a partition
                    unfinished.discard(message.partition())
        consumer.close()
        return rows

    def watch_drain(self, topic: str, start: int, rows: int) -> tuple[float, float, float]:
        """Wait until so many rows came on top of ``start``.

        Returns rows/s from the first commit that was seen to the last one, and when both were (time.monotonic).
        """
        wait(lambda: self.end(topic) > start, LOOK_SECONDS)
        begun, first = time.monotonic(), self.end(topic) - start
        last, seen = begun, first
        while seen < rows or time.monotonic() - last < QUIET_SECONDS:
            time.sleep(LOOK_SECONDS)
            now, end = time.monotonic(), self.end(topic) - start
            if end != seen:
                last, seen = now, end
            elif now - last > DEADLINE_SECONDS:
                raise SystemExit(f"{seen} of {rows} rows came to {topic}, then nothing more")
        return (rows - first) / (last - begun), begun, last

    def _create_topic(self, name: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.settings.kafka.librdkafka())
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)


def reader(bootstrap_servers: str) -> Consumer:
    """A reader of committed records that keeps no offsets, and says where a partition ends."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench.reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "socket.nagle.disable": True,
        }
    )


def wait(condition: Callable[[], bool], pause: float = 0.01) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {DEADLINE_SECONDS:.0f} s in vain")
        time.sleep(pause)
