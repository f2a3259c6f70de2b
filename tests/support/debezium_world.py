"""Real Debezium beside a test: a Connect worker, the project's configurations for it, and whole records for comparing."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg.conninfo import conninfo_to_dict

from pipeline.stack.child_process import OnStart
from pipeline.stack.connect_client import ConnectClient
from pipeline.stack.connect_server import ConnectServer
from pipeline.stack.errors import StackError
from pipeline.stack.kafka_jars import connect_class_path, debezium_plugin
from pipeline.stack.locks import locked

DEADLINE_SECONDS = 60.0
TURN_SECONDS = 600.0
USER, PASSWORD = "OUTRIDER_CONNECTOR_USER", "OUTRIDER_CONNECTOR_PASSWORD"

Headers = list[tuple[str, bytes | None]]
Content = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of a record, with nothing left out."""


@contextmanager
def connect_worker(
    bootstrap_servers: str, name: str, login: tuple[str, str], on_start: OnStart
) -> Iterator[ConnectServer]:
    """A worker whose connectors may use ``login``, once no other test of this machine runs one.

    Skips where the jars cannot be fetched.
    """
    try:
        connect_class_path()
        debezium_plugin()
    except StackError as error:
        pytest.skip(f"Debezium cannot be had: {error}")
    with (
        locked(Path(tempfile.gettempdir()) / f"outrider-connect-worker-{os.getuid()}.lock", TURN_SECONDS) as is_ours,
        tempfile.TemporaryDirectory(prefix="outrider-connect-") as folder,
    ):
        assert is_ours, "another test's Connect worker does not end"
        server = ConnectServer(
            Path(folder) / "connect",
            Path(folder) / "connect.log",
            bootstrap_servers=bootstrap_servers,
            name=name,
            environment=dict(zip((USER, PASSWORD), login, strict=True)),
            on_start=on_start,
        )
        try:
            server.start()
            yield server
        finally:
            server.stop()


def shipped(name: str) -> dict[str, str]:
    """The connector of ``connectors/debezium/NAME.json``, as it would be posted."""
    posted = json.loads(files("connectors.debezium").joinpath(f"{name}.json").read_text())
    assert posted["name"] == name
    return dict(posted["config"])


def address(dsn: str) -> dict[str, str]:
    """The connector's settings that say where the database is."""
    values = conninfo_to_dict(dsn)
    names = {"host": "hostname", "port": "port", "dbname": "dbname"}
    return {f"database.{theirs}": str(values[ours]) for ours, theirs in names.items()}


def run(client: ConnectClient, name: str, config: Mapping[str, str]) -> None:
    """Create the connector and wait until its task runs."""
    client.put(name, config)
    client.wait_running(name, DEADLINE_SECONDS)


def contents(bootstrap_servers: str, topic: str, count: int) -> dict[int, list[Content]]:
    """The committed records of each partition in their order, once there are ``count``; fails where there are more."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[int, list[Content]] = defaultdict(list)
    try:
        numbers = consumer.list_topics(topic, timeout=DEADLINE_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        deadline, ends = time.monotonic() + DEADLINE_SECONDS, set()
        while sum(map(len, found.values())) < count or ends != set(numbers):
            assert time.monotonic() < deadline, f"{sum(map(len, found.values()))} of {count} records in {topic}"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                partition = message.partition() or 0
                if error is None:
                    found[partition].append((message.key(), message.value(), message.headers() or []))
                    ends.discard(partition)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends.add(partition)
    finally:
        consumer.close()
    assert sum(map(len, found.values())) == count
    return dict(found)
