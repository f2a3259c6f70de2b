"""Invariant 2: delivery and dispatch commit together or not at all.

Every act that hands a delivery to Kafka is undone in every way there is: by its caller, by the death of its session, and by
a failure at any row of its own. Then neither the delivery nor the outbox may show a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from pipeline.admission import admit_sync
from pipeline.ledger.operator import Act
from pipeline.ledger.operator_deliveries import retry
from pipeline.ledger.queries import query
from tests.fixtures.components import StartComponent
from tests.support.delivery_world import World, opened, wait_until
from tests.support.ledger_rows import add_delivery, add_destination, connect, ledger, scalar

PAST = "2020-01-01T00:00:00Z"
ROWS = 5
"""Deliveries that one act moves."""


@dataclass(frozen=True)
class Dispatching:
    """An act that makes ROWS dispatches in one transaction, and what must lie there for it."""

    prepare: Callable[[psycopg.Connection], None]
    act: Callable[[psycopg.Connection], object]


def prepared(state: str, **columns: object) -> Callable[[psycopg.Connection], None]:
    def prepare(connection: psycopg.Connection) -> None:
        for n in range(ROWS):
            add_delivery(connection, f"e{n}", state, **columns)

    return prepare


def add_receivers(connection: psycopg.Connection) -> None:
    for n in range(1, ROWS):
        add_destination(connection, f"acme{n}")


def admit_for_all(connection: psycopg.Connection) -> object:
    names = ["acme", *(f"acme{n}" for n in range(1, ROWS))]
    return admit_sync(connection, event_id="new", event_type="t", payload=b"x", destinations=names)


def reconcile(connection: psycopg.Connection) -> object:
    return connection.execute(query("reconcile", "dispatch_page"), {"page_rows": 100, "window_seconds": 10.0})


def retry_all(connection: psycopg.Connection) -> object:
    ids = [name for (name,) in connection.execute("select delivery_id from outrider.delivery").fetchall()]
    return retry(connection, ids, Act("ada", "test"), force=False)


ACTS = {
    "admit": Dispatching(add_receivers, admit_for_all),
    "due": Dispatching(prepared("pending", next_attempt_at=PAST), reconcile),
    "lost": Dispatching(prepared("enqueued", lost_after=PAST), reconcile),
    "lease expired": Dispatching(prepared("leased", lease_until=PAST), reconcile),
    "replay": Dispatching(prepared("dead"), retry_all),
}


@pytest.fixture(params=ACTS)
def dispatching(request: pytest.FixtureRequest) -> Dispatching:
    return ACTS[request.param]


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        yield connection


def dispatches(connection: psycopg.Connection) -> int:
    return int(scalar(connection, "select count(*) from outrider.dispatch_outbox"))


def enqueued(connection: psycopg.Connection) -> list[tuple[str, int]]:
    return connection.execute(
        "select delivery_id, dispatch_seq from outrider.delivery where state = 'enqueued' order by 1"
    ).fetchall()


def test_committed_each_delivery_has_its_dispatch(
    database: str, connection: psycopg.Connection, dispatching: Dispatching
) -> None:
    dispatching.prepare(connection)
    before = dispatches(connection)
    with psycopg.connect(database) as caller:
        dispatching.act(caller)
        caller.commit()
    assert dispatches(connection) == before + ROWS
    assert len(enqueued(connection)) == ROWS
    for delivery_id, dispatch_seq in enqueued(connection):
        last = scalar(
            connection, "select max(dispatch_seq) from outrider.dispatch_outbox where delivery_id = %s", delivery_id
        )
        assert last == dispatch_seq


def test_rolled_back_neither_is_there(database: str, connection: psycopg.Connection, dispatching: Dispatching) -> None:
    dispatching.prepare(connection)
    before = ledger(connection)
    with psycopg.connect(database) as caller:
        dispatching.act(caller)
        caller.rollback()
    assert ledger(connection) == before


def test_killed_before_its_commit_neither_is_there(
    database: str, connection: psycopg.Connection, dispatching: Dispatching
) -> None:
    dispatching.prepare(connection)
    before = ledger(connection)
    caller = psycopg.connect(database)
    dispatching.act(caller)
    connection.execute("select pg_terminate_backend(%s, 10000)", (caller.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        caller.commit()
    caller.close()
    assert ledger(connection) == before


@pytest.mark.parametrize("table", ["dispatch_outbox", "delivery"])
@pytest.mark.parametrize("row_number", range(1, ROWS + 1))
def test_failed_at_any_row_neither_is_there(
    database: str, connection: psycopg.Connection, dispatching: Dispatching, table: str, row_number: int
) -> None:
    dispatching.prepare(connection)
    before = ledger(connection)
    connection.execute("create sequence public.row_number")
    connection.execute("grant usage on sequence public.row_number to public")
    connection.execute(
        f"""
        create function public.fail_at_row() returns trigger language plpgsql as $$ begin
          if nextval('public.row_number') = {row_number} then
            raise exception 'disk full' using errcode = '53100';
          end if;
          return new;
        end $$;
        create trigger fail_at_row before insert or update on outrider.{table}
          for each row execute function public.fail_at_row()
        """.encode()
    )
    with psycopg.connect(database) as caller, pytest.raises(psycopg.errors.DiskFull):
        dispatching.act(caller)
    assert ledger(connection) == before


def test_only_committed_admissions_reach_kafka(
    database: str, bootstrap_servers: str, topic_prefix: str, component: StartComponent
) -> None:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        component("connector")
        kept = admit_some_and_roll_back_others(world, database)

        def read() -> list[str]:
            return [dict(record.headers())["event_id"].decode() for record in world.records(world.dispatch)]

        wait_until(lambda: len(read()) >= len(kept), "what was committed is in the topic")
        assert read() == kept
        assert [
            event for (event,) in world.ledger.execute("select event_id from outrider.event order by admitted_at")
        ] == kept


def admit_some_and_roll_back_others(world: World, database: str) -> list[str]:
    """Event ids that were committed, in that order; the last of all is one of them, so that it marks the end."""
    kept = []
    with psycopg.connect(database) as caller:
        for n in range(30):
            admit_sync(caller, event_id=f"kept-{n}", event_type="t", payload=b"x", destinations=["acme"])
            with caller.transaction(force_rollback=True):
                admit_sync(caller, event_id=f"to-savepoint-{n}", event_type="t", payload=b"x", destinations=["acme"])
            with psycopg.connect(database) as doomed:
                admit_sync(doomed, event_id=f"rolled-back-{n}", event_type="t", payload=b"x", destinations=["acme"])
                if n % 3 == 0:
                    world.ledger.execute("select pg_terminate_backend(%s, 10000)", (doomed.info.backend_pid,))
                    doomed.close()
                else:
                    doomed.rollback()
            caller.commit()
            kept.append(f"kept-{n}")
    return kept
