"""Invariant 11 under load while connectors end, are started twice, and Kafka is away for long.

A writer goes on committing, and rolling back. At the end a read_committed reader must find each committed row once, no
other, and the order of each key. Kills of connector, broker and database are in tests/acceptance/test_invariant_11_proofs.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pipeline.stack.embedded import EmbeddedStack
from tests.fixtures.components import StartComponent
from tests.support.connector_world import (
    ConnectorWorld,
    assert_exactly_once_in_order,
    insert_dispatches,
    wait_until,
    world_of,
)

TRANSACTION_TIMEOUT_SECONDS = 6
WAL_SENDER_TIMEOUT_SECONDS = 2


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    world = world_of(settings_values)
    world.create_topics()
    return world


class Writer(threading.Thread):
    """Commits small and large transactions, and rolls some back, until it is told to stop.

    One writer alone, so that rows of a key are committed in the order of their numbers. It goes on after the
    database was away; whether a commit then counted is what the table says.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(name="writer")
        self._dsn = dsn
        self._random = random.Random(seed)
        self._stop_requested = threading.Event()
        self.committed = 0

    def run(self) -> None:
        while not self._stop_requested.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=5) as connection:
                    self._write(connection)
            except psycopg.OperationalError:
                self._stop_requested.wait(0.1)

    def _write(self, connection: psycopg.Connection) -> None:
        while not self._stop_requested.is_set():
            rows = self._random.choice([1, 1, 3, 40, 700])
            insert_dispatches(connection, rows, tag=f"{self._random.getrandbits(64):x}-")
            if self._random.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                self.committed += rows
            self._stop_requested.wait(self._random.uniform(0, 0.05))

    def stop(self) -> None:
        self._stop_requested.set()
        self.join(60)
        assert not self.is_alive()


@contextmanager
def writing(dsn: str, seed: int) -> Iterator[Writer]:
    writer = Writer(dsn, seed)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def test_invariant_11_sigterm_under_load_ends_with_0_and_the_next_start_goes_on(
    world: ConnectorWorld, database: str, component: StartComponent
) -> None:
    with writing(database, seed=2):
        connector = component("connector")
        for _ in range(2):
            published = world.end("dispatch")
            wait_until(
                lambda: world.end("dispatch") > published,  # noqa: B023  # waited for in this turn
                lambda: f"rows are published\n{connector.log_tail(20)}",
            )
            assert connector.terminate(30) == 0
            connector.start()
    with psycopg.connect(database, autocommit=True) as connection:
        assert_exactly_once_in_order(world, connection)


def test_invariant_11_two_connectors_started_by_mistake_give_one_stream(
    world: ConnectorWorld, database: str, component: StartComponent
) -> None:
    with writing(database, seed=3), psycopg.connect(database, autocommit=True) as connection:
        first = component("connector")
        second = component("connector")
        world.read_when("dispatch", 1)
        for victim in (first, second, first):
            published = world.end("dispatch")
            victim.kill()
            wait_until(
                lambda: world.end("dispatch") > published,  # noqa: B023  # waited for in this turn
                lambda: f"the other goes on\n{first.log_tail(20)}\n{second.log_tail(20)}",
            )
            victim.start()
    with psycopg.connect(database, autocommit=True) as connection:
        assert_exactly_once_in_order(world, connection)


def test_invariant_11_kafka_is_away_for_longer_than_any_timeout(
    world: ConnectorWorld, database: str, embedded_stack: EmbeddedStack
) -> None:
    impatient = make_conninfo(database, options=f"-c wal_sender_timeout={WAL_SENDER_TIMEOUT_SECONDS}s")
    with (
        psycopg.connect(database, autocommit=True) as connection,
        world.connector(conninfo=impatient, transaction_timeout_seconds=TRANSACTION_TIMEOUT_SECONDS) as connector,
    ):
        world.streaming(connector)
        insert_dispatches(connection, 100, tag="before-")
        world.read_when("dispatch", 100)
        embedded_stack.kafka.kill()
        insert_dispatches(connection, 100, tag="meanwhile-")
        gone = time.monotonic()
        reasons = set()

        def away_for_longer_than_any_timeout() -> bool:
            reasons.add(connector.status.ready(time.monotonic()))
            return time.monotonic() - gone > TRANSACTION_TIMEOUT_SECONDS + 2 * WAL_SENDER_TIMEOUT_SECONDS

        wait_until(away_for_longer_than_any_timeout, lambda: "the outage lasts")
        assert any(not ready for ready, _ in reasons), "readiness tells of it"
        embedded_stack.kafka.start()
        insert_dispatches(connection, 100, tag="after-")
        assert_exactly_once_in_order(world, connection)
        world.streaming(connector)


def test_invariant_11_killed_while_it_catches_up_by_ids(
    world: ConnectorWorld, database: str, component: StartComponent
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        insert_dispatches(connection, 100, tag="before-")
        connector = component("connector", connector_transaction_rows=20)
        wait_until(lambda: len(world.read("dispatch")) == 100, connector.log_tail)
        assert connector.terminate(30) == 0
        connection.execute("select pg_drop_replication_slot(%s)", [world.config.slot])
        insert_dispatches(connection, 5_000, tag="in-the-gap-")
        interrupted = 0
        for _ in range(2):
            published = world.end("dispatch")
            connector = component("connector", connector_transaction_rows=20)
            wait_until(lambda: world.end("dispatch") > published + 200, connector.log_tail)  # noqa: B023  # in this turn
            connector.kill()
            interrupted += len(world.read("dispatch")) < 5_100
        assert interrupted, "every kill came too late"
        component("connector")
        wait_until(lambda: len(world.read("dispatch")) >= 5_100, lambda: f"{len(world.read('dispatch'))} rows")
        assert_exactly_once_in_order(world, connection)
