"""Admission keeps back what a destination cannot start soon, without a lock and without counting rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from pipeline.ledger.deliveries import REFUSALS_MAX, Parking, park, refuse
from pipeline.ledger.pool import Pool, open_pool
from tests.support.ledger_rows import add_delivery, add_destination, connect, delivery, scalar

RATE, BURST = 5.0, 10
AT_ONCE = BURST + 2 * int(RATE)
ADMIT = "select outrider.admit(%s, 't', 'x'::bytea, destinations => %s)"
STATES = (
    "select state, waiting_reason, count(*) from outrider.delivery where destination_id = %s group by 1, 2 order by 1"
)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection, start_rate_per_second=RATE, burst=BURST)
        add_destination(connection, "other", start_rate_per_second=RATE, burst=BURST)
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, 2, "test") as pool:
        yield pool


def test_one_transaction_enqueues_what_starts_soon_and_spreads_the_rest(connection: psycopg.Connection) -> None:
    with connection.transaction():
        for number in range(AT_ONCE + 30):
            connection.execute(ADMIT, (f"e{number}", ["acme"]))
        connection.execute(ADMIT, ("alone", ["other"]))
    assert connection.execute(STATES, ("acme",)).fetchall() == [("enqueued", None, AT_ONCE), ("pending", "rate", 30)]
    # What one destination has too much of is nothing to another.
    assert connection.execute(STATES, ("other",)).fetchall() == [("enqueued", None, 1)]
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == AT_ONCE + 1
    waits = connection.execute(
        "select extract(epoch from next_attempt_at - created_at)::double precision, dispatch_seq from outrider.delivery "
        "where state = 'pending' order by 1"
    ).fetchall()
    assert [wait for wait, _ in waits] == pytest.approx([(n + 1) / RATE for n in range(30)], abs=0.1)
    assert {seq for _, seq in waits} == {0}


def test_each_transaction_counts_for_itself_and_one_that_is_undone_counts_nothing(
    connection: psycopg.Connection,
) -> None:
    for number in range(AT_ONCE + 5):
        connection.execute(ADMIT, (f"alone{number}", ["acme"]))
    with connection.transaction(force_rollback=True):
        for number in range(AT_ONCE):
            connection.execute(ADMIT, (f"undone{number}", ["acme"]))
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            for number in range(AT_ONCE):
                connection.execute(ADMIT, (f"inner{number}", ["acme"]))
        connection.execute(ADMIT, ("after", ["acme"]))
    assert connection.execute(STATES, ("acme",)).fetchall() == [("enqueued", None, AT_ONCE + 6)]


def test_the_events_of_one_call_count_too(connection: psycopg.Connection) -> None:
    total = AT_ONCE + 7
    connection.execute(
        "select * from outrider.admit_many((select jsonb_agg(jsonb_build_object('event_id', 'm' || n, 'event_type', 't', "
        "'content_type', 'a/b', 'headers', '{}'::jsonb, 'destinations', array['acme'], 'deliver_at', null)) "
        "from generate_series(1, %(n)s) as n), array_fill('x'::bytea, array[%(n)s]))",
        {"n": total},
    )
    assert connection.execute(STATES, ("acme",)).fetchall() == [("enqueued", None, AT_ONCE), ("pending", "rate", 7)]


async def test_a_destination_that_a_worker_had_no_room_for_is_held_back_for_a_while(
    pool: Pool, connection: psycopg.Connection
) -> None:
    parked = add_delivery(connection, "parked", "enqueued")
    await park(pool, [Parking(parked, 1, "lane_full", 5.0)])
    connection.execute(ADMIT, ("next", ["acme"]))
    connection.execute(ADMIT, ("elsewhere", ["other"]))
    assert connection.execute(STATES, ("other",)).fetchall() == [("enqueued", None, 1)]
    assert scalar(connection, "select waiting_reason from outrider.delivery where event_id = 'next'") == "rate"
    connection.execute("update outrider.destination set backlogged_until = clock_timestamp()")
    connection.execute(ADMIT, ("later", ["acme"]))
    assert scalar(connection, "select state from outrider.delivery where event_id = 'later'") == "enqueued"


async def test_a_destination_that_is_switched_off_is_not_marked(pool: Pool, connection: psycopg.Connection) -> None:
    await park(pool, [Parking(add_delivery(connection, "e", "enqueued"), 1, "destination_disabled", 5.0)])
    assert scalar(connection, "select backlogged_until from outrider.destination where destination_id = 'acme'") is None


async def test_neither_admission_nor_marking_waits_for_an_open_transaction(
    database: str, pool: Pool, connection: psycopg.Connection
) -> None:
    with psycopg.connect(database) as application, psycopg.connect(database) as operator:
        for number in range(AT_ONCE + 5):
            application.execute(ADMIT, (f"open{number}", ["acme"]))
        operator.execute("update outrider.destination set updated_at = now() where destination_id = 'acme'")
        connection.execute("set statement_timeout = '5s'")
        connection.execute(ADMIT, ("beside", ["acme"]))
        first = add_delivery(connection, "parked", "enqueued")
        # The operator holds the row, so the mark is left out.
        await park(pool, [Parking(first, 1, "rate", 5.0)])
        assert delivery(connection, first)["state"] == "pending"


async def test_a_message_that_cannot_be_handled_is_tried_a_few_times_and_ends_its_delivery(
    pool: Pool, connection: psycopg.Connection
) -> None:
    delivery_id = add_delivery(connection, "e", "enqueued", attempt=0)
    waits = []
    for number in range(1, REFUSALS_MAX + 1):
        assert await refuse(pool, delivery_id, 99, "another message") is None
        state = await refuse(pool, delivery_id, 1, "header\0: broken")
        row = delivery(connection, delivery_id)
        assert (row["state"], row["dispatches_refused"], row["attempt"]) == (state, number, 0)
        if number < REFUSALS_MAX:
            assert (state, row["waiting_reason"]) == ("pending", "quarantined")
            waits.append(
                scalar(connection, "select next_attempt_at - clock_timestamp() from outrider.delivery").total_seconds()
            )
            connection.execute(
                "update outrider.delivery set state = 'enqueued', next_attempt_at = null, lost_after = now() + interval '1 h'"
            )
    assert state == "dead"
    assert (row["last_outcome"], row["last_error"]) == ("quarantined", "header\\0: broken")
    assert waits == pytest.approx([10, 20, 40, 80], abs=2)
