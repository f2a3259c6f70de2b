"""Partitions are made ahead, dropped whole, and never with the evidence of a delivery that is not settled."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from tests.support.ledger_rows import STATES, add_delivery, add_destination, connect, scalar

PARENTS = {"dispatch_outbox": "created_at", "delivery_attempt": "recorded_at"}


def partitions(connection: psycopg.Connection, parent: str) -> list[str]:
    rows = connection.execute(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = ('outrider.' || %s)::regclass order by 1",
        (parent,),
    ).fetchall()
    return [name for (name,) in rows]


def day_name(parent: str, day: date) -> str:
    return f"{parent}_{day:%Y%m%d}"


def today(connection: psycopg.Connection) -> date:
    day: date = scalar(connection, "select (clock_timestamp() at time zone 'UTC')::date")
    return day


def add_old_partition(connection: psycopg.Connection, parent: str, day: date) -> str:
    name = day_name(parent, day)
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    connection.execute(
        sql.SQL("create table outrider.{} partition of outrider.{} for values from ({}) to ({})").format(
            sql.Identifier(name), sql.Identifier(parent), sql.Literal(start), sql.Literal(start + timedelta(days=1))
        )
    )
    return name


def add_old_row(connection: psycopg.Connection, parent: str, delivery_id: str, at: datetime) -> None:
    if parent == "dispatch_outbox":
        connection.execute(
            "insert into outrider.dispatch_outbox (created_at, message_id, delivery_id, dispatch_seq, destination_id, "
            "event_id, event_type, content_type, headers, payload, reason) "
            "values (%s, gen_random_uuid(), %s, 1, 'acme', 'e', 't', 'c', '{}', '', 'admitted')",
            (at, delivery_id),
        )
    else:
        connection.execute(
            "insert into outrider.delivery_attempt (recorded_at, delivery_id, event_id, event_type, destination_id, "
            "attempt, dispatch_seq, worker_id, result, outcome, ambiguous, payload_sha256, started_at, duration_seconds) "
            "values (%s, %s, 'e', 't', 'acme', 1, 1, 'w', 'retry', 'server_error', true, '', now(), 0)",
            (at, delivery_id),
        )


def drop_expired(connection: psycopg.Connection, outbox_days: int = 7, attempt_days: int = 90) -> list[str]:
    rows = connection.execute("select outrider.drop_expired_partitions(%s, %s)", (outbox_days, attempt_days)).fetchall()
    return [name for (name,) in rows]


@pytest.mark.parametrize("parent", PARENTS)
def test_a_new_schema_has_partitions_for_two_weeks(rolled_back: psycopg.Connection, parent: str) -> None:
    day = today(rolled_back)
    assert {day_name(parent, day + timedelta(days=n)) for n in range(15)} <= set(partitions(rolled_back, parent))


def test_partitions_are_made_ahead_once(rolled_back: psycopg.Connection) -> None:
    day = today(rolled_back)
    made = rolled_back.execute("select outrider.ensure_partitions(20)").fetchall()
    expected = {day_name(parent, day + timedelta(days=n)) for parent in PARENTS for n in range(15, 21)}
    assert {name for (name,) in made} >= expected
    assert rolled_back.execute("select outrider.ensure_partitions(20)").fetchall() == []


def test_rows_go_to_the_partition_of_their_day(rolled_back: psycopg.Connection) -> None:
    add_destination(rolled_back)
    add_delivery(rolled_back, "e", "enqueued")
    name = scalar(rolled_back, "select tableoid::regclass::text from outrider.dispatch_outbox")
    assert name == f"outrider.{day_name('dispatch_outbox', today(rolled_back))}"


@pytest.mark.parametrize("parent", PARENTS)
def test_a_day_without_partition_falls_into_the_default_one_and_stays_there(
    rolled_back: psycopg.Connection, parent: str
) -> None:
    day = today(rolled_back)
    rolled_back.execute(f"drop table outrider.{day_name(parent, day)}".encode())
    add_old_row(rolled_back, parent, "d", datetime(day.year, day.month, day.day, 12, tzinfo=UTC))
    assert scalar(rolled_back, f"select count(*) from outrider.{parent}_rest") == 1

    # Moving it would publish it a second time, so its day gets no partition; the others do.
    made = {name for (name,) in rolled_back.execute("select outrider.ensure_partitions(16)").fetchall()}
    assert day_name(parent, day) not in made
    assert day_name(parent, day + timedelta(days=16)) in made
    assert scalar(rolled_back, f"select count(*) from outrider.{parent}_rest") == 1


@pytest.mark.parametrize(("parent", "keep_days"), [("dispatch_outbox", 7), ("delivery_attempt", 90)])
def test_only_days_that_ended_longer_ago_are_dropped(
    rolled_back: psycopg.Connection, parent: str, keep_days: int
) -> None:
    day = today(rolled_back)
    # A partition of day n ends at the beginning of day n + 1.
    kept = add_old_partition(rolled_back, parent, day - timedelta(days=keep_days))
    expired = add_old_partition(rolled_back, parent, day - timedelta(days=keep_days + 1))
    assert drop_expired(rolled_back) == [expired]
    assert kept in partitions(rolled_back, parent)
    assert expired not in partitions(rolled_back, parent)


@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("state", STATES)
def test_evidence_of_an_unsettled_delivery_is_kept(rolled_back: psycopg.Connection, parent: str, state: str) -> None:
    add_destination(rolled_back)
    delivery_id = add_delivery(rolled_back, "e", state)
    old_day = today(rolled_back) - timedelta(days=200)
    name = add_old_partition(rolled_back, parent, old_day)
    add_old_row(rolled_back, parent, delivery_id, datetime(old_day.year, old_day.month, old_day.day, 5, tzinfo=UTC))

    is_settled = state in ("succeeded", "dead")
    assert drop_expired(rolled_back) == ([name] if is_settled else [])
    assert (name in partitions(rolled_back, parent)) is not is_settled


@pytest.mark.parametrize(("outbox_days", "attempt_days"), [(0, 90), (7, 0), (-1, 90)])
def test_a_retention_of_less_than_a_day_is_refused(
    rolled_back: psycopg.Connection, outbox_days: int, attempt_days: int
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue), rolled_back.transaction():
        drop_expired(rolled_back, outbox_days, attempt_days)


def test_a_reader_that_holds_a_partition_delays_its_drop_and_blocks_nobody(database: str) -> None:
    with connect(database) as connection, psycopg.connect(database) as reader:
        name = add_old_partition(connection, "dispatch_outbox", today(connection) - timedelta(days=100))
        reader.execute(f"select * from outrider.{name}".encode())
        assert drop_expired(connection) == []
        reader.rollback()
        assert drop_expired(connection) == [name]


@pytest.mark.parametrize("timezone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_bounds_do_not_depend_on_the_sessions_time_zone(rolled_back: psycopg.Connection, timezone: str) -> None:
    rolled_back.execute(f"set local timezone = '{timezone}'".encode())
    rolled_back.execute("select outrider.ensure_partitions(18)")
    rolled_back.execute("set local timezone = 'UTC'")
    day = today(rolled_back) + timedelta(days=18)
    bound = scalar(
        rolled_back,
        "select pg_get_expr(relpartbound, oid) from pg_class where relname = %s",
        day_name("dispatch_outbox", day),
    )
    assert f"'{day} 00:00:00+00'" in bound


def test_admission_goes_on_while_partitions_are_made(database: str) -> None:
    with connect(database) as upkeep, connect(database) as application:
        add_destination(application)
        application.execute("set lock_timeout = '5s'")
        with upkeep.transaction():
            assert upkeep.execute("select outrider.ensure_partitions(20)").fetchall()
            application.execute("select outrider.admit('e', 'test.event', '', destinations => array['acme'])")
        assert scalar(application, "select count(*) from outrider.dispatch_outbox") == 1


def test_a_reader_that_is_in_the_way_is_not_waited_for(database: str) -> None:
    with connect(database) as upkeep, connect(database) as reader:
        with reader.transaction():
            reader.execute("select from outrider.delivery_attempt")
            made = {name for (name,) in upkeep.execute("select outrider.ensure_partitions(15)").fetchall()}
        last = today(upkeep) + timedelta(days=15)
        assert made == {day_name("dispatch_outbox", last)}
        made = {name for (name,) in upkeep.execute("select outrider.ensure_partitions(15)").fetchall()}
        assert made == {day_name("delivery_attempt", last)}


@pytest.mark.parametrize("parent", PARENTS)
def test_old_rows_of_settled_deliveries_leave_the_default_partition(
    rolled_back: psycopg.Connection, parent: str
) -> None:
    add_destination(rolled_back)
    settled = add_delivery(rolled_back, "settled", "succeeded")
    waiting = add_delivery(rolled_back, "waiting", "pending")
    long_ago = datetime.now(UTC) - timedelta(days=400)
    for delivery_id in (settled, waiting):
        add_old_row(rolled_back, parent, delivery_id, long_ago)
    add_old_row(rolled_back, parent, settled, datetime.now(UTC) + timedelta(days=400))
    assert drop_expired(rolled_back) == [f"{parent}_rest"]
    assert f"{parent}_rest" in partitions(rolled_back, parent)
    left = rolled_back.execute(f"select delivery_id from outrider.{parent}_rest order by {PARENTS[parent]}".encode())
    assert left.fetchall() == [(waiting,), (settled,)]
