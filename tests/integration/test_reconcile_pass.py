"""One pass finds what is due, lost or expired, in bounded pages, and records what it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pipeline.core.ids import message_identity
from pipeline.ledger.pool import Pool, open_pool
from pipeline.ledger.queries import query
from pipeline.ledger.reconcile import Moved
from pipeline.ledger.reports import oldest_due_seconds
from pipeline.reconcile.passes import PassLimits, run_pass
from tests.support.ledger_rows import add_delivery, add_destination, connect, delivery, ledger, scalar

LIMITS = PassLimits(page_rows=100, pass_rows=10_000, window_seconds=10)
PAST = "2020-01-01T00:00:00Z"
FOUND = {
    "due": ("pending", {"next_attempt_at": PAST}),
    "lost": ("enqueued", {"lost_after": PAST}),
    "lease_expired": ("leased", {"lease_until": PAST}),
}


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection, start_rate_per_second=1_000, burst=1_000)
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, 4, "test") as pool:
        yield pool


def add_due(connection: psycopg.Connection, count: int, destination_id: str = "acme") -> None:
    for n in range(count):
        add_delivery(connection, f"{destination_id}-{n}", "pending", destination_id, next_attempt_at=PAST)


def runs(connection: psycopg.Connection) -> list[dict[str, Any]]:
    return connection.cursor(row_factory=dict_row).execute("select * from outrider.run order by started_at").fetchall()


def take_from_transport(connection: psycopg.Connection, destination_id: str = "acme", limit: int = 1_000) -> None:
    """As workers do, so that there is room for more."""
    connection.execute(
        "update outrider.delivery set state = 'dead', lost_after = null, settled_at = now() where delivery_id in ("
        "select delivery_id from outrider.delivery where destination_id = %s and state = 'enqueued' limit %s)",
        (destination_id, limit),
    )


def outbox_rows(connection: psycopg.Connection, delivery_id: str) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select message_id, dispatch_seq, reason, payload from outrider.dispatch_outbox "
        "where delivery_id = %s order by dispatch_seq",
        (delivery_id,),
    ).fetchall()


@pytest.mark.parametrize("reason", FOUND)
async def test_what_waits_is_dispatched_again_with_its_outbox_row(
    pool: Pool, connection: psycopg.Connection, reason: str
) -> None:
    state, columns = FOUND[reason]
    delivery_id = add_delivery(connection, "e", state, **columns)

    result = await run_pass(pool, LIMITS, woken_by="timer")

    assert result.moved == Moved(**{reason: 1})
    row = delivery(connection, delivery_id)
    assert (row["state"], row["dispatch_seq"], row["attempt"]) == ("enqueued", 2, 1)
    assert row["next_attempt_at"] is None
    assert row["lease_owner"] is None
    assert outbox_rows(connection, delivery_id)[-1] == (message_identity(delivery_id, 2), 2, reason, b"body")


@pytest.mark.parametrize("state", ["pending", "enqueued", "leased", "succeeded", "dead"])
async def test_what_is_not_due_stays(pool: Pool, connection: psycopg.Connection, state: str) -> None:
    add_delivery(connection, "e", state)
    before = ledger(connection)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved()
    assert ledger(connection) == before


async def test_an_expired_lease_leaves_its_attempt_on_record(pool: Pool, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "leased", lease_until=PAST, lease_owner="w7")
    await run_pass(pool, LIMITS, woken_by="timer")
    attempts = connection.execute(
        "select delivery_id, attempt, dispatch_seq, worker_id, result, ambiguous from outrider.delivery_attempt"
    ).fetchall()
    assert attempts == [(delivery_id, 1, 1, "w7", "lease_expired", True)]


async def test_each_loss_doubles_the_patience_with_the_transport(pool: Pool, connection: psycopg.Connection) -> None:
    connection.execute("update outrider.ledger_setting set transport_timeout_seconds = 100")
    delivery_id = add_delivery(connection, "e", "enqueued", lost_after=PAST)
    waits = []
    for _ in range(3):
        await run_pass(pool, LIMITS, woken_by="timer")
        waits.append(scalar(connection, "select lost_after - clock_timestamp() from outrider.delivery").total_seconds())
        connection.execute("update outrider.delivery set lost_after = %s", (PAST,))
    assert [round(wait / 100) for wait in waits] == [2, 4, 8]
    assert delivery(connection, delivery_id)["dispatches_lost"] == 3


async def test_a_disabled_destination_keeps_its_deliveries(pool: Pool, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "pending", next_attempt_at=PAST)
    connection.execute("update outrider.destination set enabled = false")
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved()
    assert await oldest_due_seconds(pool) == 0

    connection.execute("update outrider.destination set enabled = true")
    assert await oldest_due_seconds(pool) > 0
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=1)
    assert delivery(connection, delivery_id)["state"] == "enqueued"


async def test_a_destination_is_given_no_more_than_it_can_start(pool: Pool, connection: psycopg.Connection) -> None:
    add_destination(connection, "slow", start_rate_per_second=0.5, burst=2)
    add_due(connection, 30, "slow")
    add_due(connection, 5)
    # 10 s at 0.5 starts a second, and its burst.
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=7 + 5)
    # What is on the way counts: nothing more goes until a worker takes some.
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved()
    take_from_transport(connection, "slow", 3)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=3)


@pytest.mark.parametrize(("openings", "probe"), [(1, "retry"), (2, "first try"), (3, "retry")])
async def test_every_other_time_a_retry_probes_a_failing_receiver(
    pool: Pool, connection: psycopg.Connection, openings: int, probe: str
) -> None:
    deliveries = {
        "first try": add_delivery(connection, "first try", "pending", attempt=0, next_attempt_at=PAST),
        "retry": add_delivery(connection, "retry", "pending", attempt=1, next_attempt_at="2021-01-01T00:00:00Z"),
    }
    connection.execute("update outrider.destination_pace set openings = %s, open_until = %s", (openings, PAST))
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=1)
    states = {name: delivery(connection, delivery_id)["state"] for name, delivery_id in deliveries.items()}
    assert states == {"first try": "pending", "retry": "pending"} | {probe: "enqueued"}


async def test_without_a_retry_that_is_due_a_first_try_probes(pool: Pool, connection: psycopg.Connection) -> None:
    add_delivery(connection, "retry", "pending", attempt=1, next_attempt_at="2100-01-01T00:00:00Z")
    add_delivery(connection, "first try", "pending", attempt=0, next_attempt_at=PAST)
    connection.execute("update outrider.destination_pace set openings = 1, open_until = %s", (PAST,))
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=1)


async def test_pages_and_passes_are_bounded(pool: Pool, connection: psycopg.Connection) -> None:
    for n in range(10):
        add_delivery(connection, f"due-{n}", "pending", next_attempt_at=PAST)
        add_delivery(connection, f"lost-{n}", "enqueued", lost_after=PAST)
        add_delivery(connection, f"expired-{n}", "leased", lease_until=PAST)
    limits = PassLimits(page_rows=4, pass_rows=22, window_seconds=10)

    result = await run_pass(pool, limits, woken_by="timer")

    assert result.moved.total == 22
    assert not result.is_complete
    # Each transaction wrote one page.
    pages = connection.execute(
        "select count(*) from outrider.dispatch_outbox where reason <> 'admitted' group by xmin::text order by 1 desc"
    ).fetchall()
    assert [rows for (rows,) in pages] == [4, 4, 4, 4, 4, 2]
    rest = await run_pass(pool, limits, woken_by="backlog")
    assert result.moved + rest.moved == Moved(due=10, lost=10, lease_expired=10)
    assert rest.is_complete


async def test_a_page_locks_no_more_than_it_moves(database: str, pool: Pool, connection: psycopg.Connection) -> None:
    add_due(connection, 10)
    with psycopg.connect(database) as first:
        parameters = {"page_rows": 3, "window_seconds": 10.0}
        assert first.execute(query("reconcile", "dispatch_page"), parameters).fetchone() == (3, 0, 0)
        # What the page did not take is free for another.
        assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=7)


async def test_a_pass_stops_after_the_page_at_hand(pool: Pool, connection: psycopg.Connection) -> None:
    for destination_id in ("a", "b", "c"):
        add_destination(connection, destination_id)
        add_due(connection, 4, destination_id)
    limits = PassLimits(page_rows=2, pass_rows=1_000, window_seconds=10)
    result = await run_pass(pool, limits, woken_by="timer", stop=lambda: True)
    assert result.moved == Moved(due=2)
    assert not result.is_complete
    (run,) = runs(connection)
    assert run["finished_at"] is not None


async def test_two_at_once_divide_the_work(pool: Pool, connection: psycopg.Connection) -> None:
    add_due(connection, 200)
    limits = PassLimits(page_rows=20, pass_rows=10_000, window_seconds=10)
    first, second = await asyncio.gather(
        run_pass(pool, limits, woken_by="timer"), run_pass(pool, limits, woken_by="timer")
    )
    rest = await run_pass(pool, limits, woken_by="timer")

    assert first.moved.due + second.moved.due + rest.moved.due <= 200
    seqs = connection.execute("select dispatch_seq, count(*) from outrider.delivery group by 1 order by 1").fetchall()
    assert sum(count for _, count in seqs) == 200
    # Nothing went twice.
    assert {seq for seq, _ in seqs} <= {1, 2}
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox where reason = 'due'") == sum(
        result.moved.due for result in (first, second, rest)
    )


async def test_rows_that_another_session_holds_are_passed_over(
    database: str, pool: Pool, connection: psycopg.Connection
) -> None:
    held = add_delivery(connection, "held", "pending", next_attempt_at=PAST)
    free = add_delivery(connection, "free", "pending", next_attempt_at=PAST)
    with psycopg.connect(database) as other:
        other.execute("select from outrider.delivery where delivery_id = %s for update", (held,))
        assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=1)
        assert delivery(connection, free)["state"] == "enqueued"
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved == Moved(due=1)


async def test_a_pass_that_moves_something_is_one_run(pool: Pool, connection: psycopg.Connection) -> None:
    add_due(connection, 3)
    add_delivery(connection, "lost", "enqueued", lost_after=PAST)
    result = await run_pass(pool, LIMITS, woken_by="notify")
    (run,) = runs(connection)
    assert run["run_id"] == result.run_id
    assert (run["kind"], run["woken_by"], run["error"]) == ("reconcile", "notify", None)
    assert run["counts"] == {"due": 3, "lost": 1, "lease_expired": 0}
    assert run["finished_at"] >= run["started_at"]


async def test_idle_passes_leave_no_run_unless_a_person_asked(pool: Pool, connection: psycopg.Connection) -> None:
    for _ in range(3):
        assert (await run_pass(pool, LIMITS, woken_by="timer")).run_id is None
    assert runs(connection) == []

    result = await run_pass(pool, LIMITS, woken_by="operator", operator="ada", reason="looking")
    (run,) = runs(connection)
    assert run["run_id"] == result.run_id
    assert (run["operator"], run["reason"], run["counts"]["due"]) == ("ada", "looking", 0)


async def test_a_pass_that_fails_says_so_in_its_run_and_keeps_its_pages(
    pool: Pool, connection: psycopg.Connection
) -> None:
    for destination_id in ("a", "b", "c"):
        add_destination(connection, destination_id)
        add_due(connection, 4, destination_id)
    connection.execute(
        "create function public.fail_later() returns trigger language plpgsql as $$ begin "
        "if (select count(*) from outrider.dispatch_outbox where reason = 'due') >= 4 then "
        "raise exception 'disk full' using errcode = '53100'; end if; return new; end $$; "
        "create trigger fail_later before insert on outrider.dispatch_outbox "
        "for each row when (new.reason = 'due') execute function public.fail_later()"
    )
    with pytest.raises(psycopg.errors.DiskFull):
        await run_pass(pool, PassLimits(page_rows=4, pass_rows=100, window_seconds=10), woken_by="timer")

    (run,) = runs(connection)
    assert "disk full" in run["error"]
    assert run["finished_at"] is not None
    # The page that failed left nothing: what the run counts is what lies in the ledger.
    assert (
        run["counts"]["due"]
        == scalar(connection, "select count(*) from outrider.delivery where state = 'enqueued'")
        == 4
    )
