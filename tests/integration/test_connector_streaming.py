"""The connector against the real broker and database: what is committed arrives, once, in order, byte for byte."""

from __future__ import annotations

import json
import time
from datetime import datetime

import psycopg
import pytest

from connectors.postgres.lsn import parse_lsn
from tests.support.connector_world import (
    ConnectorWorld,
    assert_exactly_once_in_order,
    insert_dispatches,
    wait_until,
    world_of,
)
from topics.codecs import Attempt, Dispatch, decode_attempt, decode_dispatch

AWKWARD = b'\x00\xff{"price": 1.10, "a": null}\r\n\xf0\x9f\x90\x98'


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    world = world_of(settings_values)
    world.create_topics()
    return world


def test_invariant_5_a_dispatch_carries_the_admitted_bytes_and_every_header(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        row = connection.execute(
            """
            insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id,
                                                  event_type, content_type, headers, payload, reason)
            values (gen_random_uuid(), 'd:1', 3, 'acmé', 'e:1', 'media.processed', 'application/json',
                    '{"x-tenant": "ü"}', %s, 'due')
            returning message_id::text
            """,
            [AWKWARD],
        ).fetchone()
        (record,) = world.read_when("dispatch", 1)
    assert row is not None
    assert decode_dispatch(record.key, record.value, record.headers.items()) == Dispatch(
        destination_id="acmé",
        message_id=row[0],
        delivery_id="d:1",
        dispatch_seq=3,
        payload=AWKWARD,
        event_id="e:1",
        event_type="media.processed",
        content_type="application/json",
        reason="due",
        headers={"x-tenant": "ü"},
    )


def test_an_attempt_carries_its_whole_row(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        connection.execute(
            """
            insert into outrider.delivery_attempt (delivery_id, event_id, event_type, destination_id, attempt,
              dispatch_seq, worker_id, result, outcome, status, ambiguous, error, response_excerpt, retry_after_seconds,
              next_attempt_at, key_ids, payload_sha256, started_at, duration_seconds, response_headers, first_byte_seconds)
            values ('d1', 'e1', 't', 'acme', 2, 5, 'w1', 'retry', 'throttled', 429, true, 'a "quoted"' || chr(10) || 'line',
              '\\x00ff', 1.5, '2026-01-02 03:04:05+00', array['key "1"', 'key,2'], sha256('x'), '2026-01-01 00:00:00.1+00', 0.1,
              '{"server": "a \\"b\\" ü"}', 0.05)
            """
        )
        (record,) = world.read_when("attempts", 1)
        row = connection.execute("select attempt_id, recorded_at from outrider.delivery_attempt").fetchone()
    assert row is not None
    attempt = decode_attempt(record.value)
    assert isinstance(attempt, Attempt)
    assert attempt.attempt_id == row[0]
    assert datetime.fromisoformat(attempt.recorded_at) == row[1]
    assert (attempt.status, attempt.ambiguous, attempt.error) == (429, True, 'a "quoted"\nline')
    assert (attempt.response_excerpt, attempt.retry_after_seconds) == (b"\x00\xff", 1.5)
    assert (attempt.next_attempt_at, attempt.started_at) == (
        "2026-01-02T03:04:05.000000Z",
        "2026-01-01T00:00:00.100000Z",
    )
    assert attempt.key_ids == ['key "1"', "key,2"]
    assert attempt.response_headers == {"server": 'a "b" ü'}
    assert (attempt.first_byte_seconds, attempt.dns_seconds) == (0.05, None)
    assert record.key == b"acme"
    assert record.headers == {"id": str(row[0]).encode(), "delivery_id": b"d1", "result": b"retry"}
    columns = connection.execute(
        "select attname from pg_attribute where attrelid = 'outrider.delivery_attempt'::regclass and attnum > 0"
    ).fetchall()
    # A column that is added to the table has to be added to the contract too.
    assert record.value is not None
    assert set(json.loads(record.value)) == {name for (name,) in columns} == set(Attempt.__struct_fields__)


def test_invariant_11_rolled_back_rows_never_arrive_and_committed_ones_do_once(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        for number in range(30):
            with connection.transaction(force_rollback=number % 3 == 0):
                insert_dispatches(connection, 5, tag=f"t{number}-")
                with connection.transaction(force_rollback=True):
                    insert_dispatches(connection, 5, tag=f"savepoint-of-t{number}-")
        records = assert_exactly_once_in_order(world, connection)
    assert len(records) == 20 * 5


def test_invariant_11_rows_from_before_the_slot_are_published_once(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    insert_dispatches(connection, 500, tag="before-")
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 500, tag="after-")
        assert_exactly_once_in_order(world, connection)
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 500, tag="restarted-")
        assert_exactly_once_in_order(world, connection)


def test_invariant_11_a_large_source_transaction_passes_in_parts_and_goes_on_where_it_stopped(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
    insert_dispatches(connection, 20_000)
    # Stopped in the middle of one source transaction, several times.
    for part in range(1, 4):
        with world.connector(transaction_rows=500) as connector:
            wait_until(
                lambda: connector.status.rows >= 500,
                lambda: f"part {part} is published ({connector.status})",  # noqa: B023
            )
        assert connector.status.transactions >= 1
    with world.connector() as connector:
        assert_exactly_once_in_order(world, connection)
    assert connector.status.state == "stopped"


def test_sigterm_leaves_nothing_to_skip(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 100)
        world.read_when("dispatch", 100)
    row = connection.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", [world.config.slot]
    ).fetchone()
    assert row is not None
    assert parse_lsn(row[0]) == connector.status.last_lsn


def test_idle_tables_hold_no_wal_back(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    connection.execute("create table public.elsewhere (filler text)")
    with world.connector(idle_position_seconds=0.2) as connector:
        world.streaming(connector)
        connection.execute("insert into public.elsewhere select repeat('x', 1000) from generate_series(1, 5000)")
        end = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        assert end is not None
        wait_until(
            lambda: bool(
                connection.execute(
                    "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s",
                    [end[0], world.config.slot],
                ).fetchone()
                == (True,)
            ),
            lambda: f"the slot passes {end[0]}",
        )
        assert connector.status.rows == 0
        # The position goes first, so that the next start finds the slot at or behind it.
        assert connector.status.last_lsn >= parse_lsn(end[0])
    with world.connector() as connector:
        world.streaming(connector)


def test_a_row_that_kafka_would_refuse_is_quarantined_with_its_reason_and_the_others_pass(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 1, tag="first-")
        insert_dispatches(connection, 1, tag="huge-", payload_bytes=5 * 1024 * 1024)
        insert_dispatches(connection, 1, tag="last-")
        delivered = world.read_when("dispatch", 2)
        (refused,) = world.read_when("quarantine", 1)
    assert [record.headers["delivery_id"] for record in delivered] == [b"first-1", b"last-1"]
    assert connector.status.quarantined == 1
    assert refused.key == b"destination 1"
    assert refused.headers["delivery_id"] == b"huge-1"
    assert b"size" in refused.headers["quarantine_reason"].lower()
    assert refused.value is not None
    described = json.loads(refused.value)
    assert described["table"] == "outrider.dispatch_outbox"
    assert described["topic"] == world.settings.name("dispatch")
    assert described["value_bytes"] == 5 * 1024 * 1024


def test_a_standby_waits_for_the_slot_and_takes_over(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    with world.connector() as first:
        world.streaming(first)
        with world.connector() as second:
            wait_until(lambda: second.status.state == "waiting for slot", lambda: f"the second waits ({second.status})")
            insert_dispatches(connection, 100, tag="both-")
            world.read_when("dispatch", 100)
            assert second.status.rows == 0
            assert first.status.reconnects == 0
            ready, why = second.status.ready(time.monotonic())
            assert not ready
            assert "waiting for slot" in why
            # The first loses its connection, as it would in a failure of the network.
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
                [world.config.slot],
            )
            insert_dispatches(connection, 100, tag="after-")
            assert_exactly_once_in_order(world, connection)


def test_invariant_11_a_first_start_that_was_cut_off_begins_again(
    world: ConnectorWorld, connection: psycopg.Connection, database: str
) -> None:
    insert_dispatches(connection, 300)
    # The snapshot cannot be read to its end while the second table is locked.
    with psycopg.connect(database) as blocker:
        blocker.execute("lock table outrider.delivery_attempt in access exclusive mode")
        with world.connector() as connector:
            waiting = "from pg_locks where not granted and relation = 'outrider.delivery_attempt'::regclass"
            wait_until(
                lambda: connection.execute(f"select count(*) {waiting}").fetchone() == (1,),
                lambda: f"the snapshot waits for the lock ({connector.status})",
            )
            connection.execute(f"select pg_terminate_backend(pid) {waiting}")
            wait_until(lambda: connector.status.reconnects > 0, lambda: f"the session fails ({connector.status})")
    assert world.read("dispatch") == []
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 300, tag="after-")
        assert_exactly_once_in_order(world, connection)
