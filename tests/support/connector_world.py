"""A connector in a thread of the test, the topics it writes, and what a read_committed reader sees of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connectors.connector import Connector
from connectors.stop import StopSignal
from pipeline.cli.run_connector import connector_config
from pipeline.settings import Settings, load_settings
from tests.support.contracts import assert_fits
from topics.admin import TopicAdmin
from topics.declarations import declare_topics
from topics.difference import differences

DEADLINE_SECONDS = 60.0
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Read:
    """A record as it lies in its topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes] = field(default_factory=dict)


class ConnectorWorld:
    """One database with a publication, topics under one prefix, and connectors between them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config = connector_config(settings)
        self.kafka = settings.kafka.librdkafka()

    def create_topics(self, *, partitions: int = PARTITIONS) -> None:
        declared = declare_topics(
            prefix=self.settings.topic_prefix,
            dispatch_partitions=partitions,
            attempts_partitions=partitions,
            replication_factor=1,
            min_insync_replicas=1,
        )
        TopicAdmin(self.settings.kafka).apply(declared, differences(declared, {}))

    @contextmanager
    def connector(self, **changes: Any) -> Iterator[Connector]:
        """Run a connector while the block runs, and stop it as SIGTERM does. Its error is raised at the end."""
        connector = Connector(replace(self.config, **changes), stop := StopSignal())
        thread = _ConnectorThread(connector)
        thread.start()
        try:
            yield connector
        finally:
            stop.set()
            thread.join(DEADLINE_SECONDS)
            stop.close()
            if thread.error is not None:
                raise thread.error
        assert not thread.is_alive(), "the connector did not stop"

    def streaming(self, connector: Connector) -> None:
        """Wait until it streams, or has ended before it could."""
        wait_until(
            lambda: connector.status.state in ("streaming", "stopped"),
            lambda: f"the connector streams ({connector.status})",
        )
        assert connector.status.state == "streaming", connector.status.reason

    def read(self, part: str) -> list[Read]:
        """All committed records of ``<prefix>.<part>`` to its present end, in the order of each partition."""
        return read_committed(self.settings.kafka_bootstrap_servers, self.settings.name(part))

    def end(self, part: str) -> int:
        """A number that grows with every transaction committed to the topic; cheap, for waiting."""
        topic = self.settings.name(part)
        consumer = _reader(self.settings.kafka_bootstrap_servers)
        try:
            return sum(_end(consumer, TopicPartition(topic, partition)) for partition in range(PARTITIONS))
        finally:
            consumer.close()

    def read_when(self, part: str, count: int) -> list[Read]:
        """The same, once there are at least so many."""
        found: list[Read] = []

        def enough() -> bool:
            found[:] = self.read(part)
            return len(found) >= count

        wait_until(enough, lambda: f"{count} records in {part} (there are {len(found)})")
        return found


class _ConnectorThread(threading.Thread):
    """Keeps the error that ended the connector, for the test's thread."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(name="connector")
        self.error: Exception | None = None
        self._connector = connector

    def run(self) -> None:
        try:
            self._connector.run()
        except Exception as error:
            self.error = error
            self._connector.status.enter("stopped", repr(error))


def world_of(values: dict[str, object], **changes: object) -> ConnectorWorld:
    return ConnectorWorld(load_settings(**{**values, **changes}))


def read_committed(bootstrap_servers: str, topic: str) -> list[Read]:
    """Every committed record of the topic, to the end of each partition at the time of the call, one after the other.

    Each fits its topic's contract, if it has one.
    """
    consumer = _reader(bootstrap_servers)
    records: list[Read] = []
    try:
        partitions = set(consumer.list_topics(topic, timeout=DEADLINE_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while partitions:
            assert time.monotonic() < deadline, f"partitions {partitions} of {topic} do not come to an end"
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    record = _read(message)
                    assert_fits(topic, record.key, record.value, record.headers.items())
                    records.append(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    partitions.discard(message.partition())
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Where the log ends; asked again while a broker that has just started does not lead the partition yet."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, DEADLINE_SECONDS)[1]
        except KafkaException:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
        else:
            return end


def _reader(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )


def _read(message: Message) -> Read:
    headers = {name: value for name, value in message.headers() or [] if isinstance(value, bytes)}
    return Read(message.partition() or 0, message.offset() or 0, message.key(), message.value(), headers)


def drop_slot(connection: psycopg.Connection, slot: str) -> None:
    """Drop it, waiting for the server to notice that the connector which has just ended does not read it any more."""

    def is_dropped() -> bool:
        try:
            connection.execute("select pg_drop_replication_slot(%s)", [slot])
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(is_dropped, lambda: f"slot {slot} is free")


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Poll until it holds; fail with ``what`` after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what()}"
        time.sleep(0.02)


def insert_dispatches(
    connection: psycopg.Connection, count: int, *, destinations: int = 7, payload_bytes: int = 100, tag: str = "d"
) -> None:
    """So many outbox rows in one statement. ``dispatch_seq`` counts up, so it tells the order in which they were written."""
    connection.execute(
        """
        insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id,
                                              event_type, content_type, headers, payload, reason)
        select gen_random_uuid(), %(tag)s || n, n, 'destination ' || n %% %(destinations)s, 'event ' || n, 'test.event',
               'text/plain', '{}', convert_to(rpad(n::text, %(payload)s, '.'), 'UTF8'), 'admitted'
        from generate_series(1, %(count)s) n
        """,
        {"tag": tag, "destinations": destinations, "payload": payload_bytes, "count": count},
    )


def assert_exactly_once_in_order(world: ConnectorWorld, connection: psycopg.Connection) -> list[Read]:
    """The dispatch topic holds every committed outbox row once, none else, and in the order of each key.

    Rows of one key must have been written in the order of their ``outbox_id``.
    """
    rows = connection.execute(
        "select message_id::text, destination_id from outrider.dispatch_outbox order by outbox_id"
    ).fetchall()
    records = world.read_when("dispatch", len(rows))
    expected: dict[str, list[str]] = {}
    for message_id, destination_id in rows:
        expected.setdefault(destination_id, []).append(message_id)
    published: dict[str, list[str]] = {}
    for record in records:
        assert record.key is not None
        published.setdefault(record.key.decode(), []).append(record.headers["id"].decode())
    assert {key: len(ids) for key, ids in published.items()} == {key: len(ids) for key, ids in expected.items()}
    assert published == expected
    return records
