"""Invariant 7: terminal states are left only by a recorded operator action.

Every statement of the worker and of the reconciler is thrown at terminal rows, with arguments that would fit them if they
were not terminal. None may change a delivery; a late result may only be logged as late.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import resources
from typing import Literal

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.lifecycle import TRANSITIONS, Actor, State
from pipeline.ledger.deliveries import ClaimRequest, Parking, Refused, claim, park, refuse, settle
from pipeline.ledger.operator import Act
from pipeline.ledger.operator_deliveries import Filter, cancel, retry, retry_selection, select
from pipeline.ledger.pool import Pool, open_pool
from pipeline.reconcile.passes import PassLimits, run_pass
from tests.support.ledger_rows import add_delivery, add_destination, connect, delivery, scalar
from tests.support.settlements import BREAKER, settlement

TERMINAL = ("succeeded", "dead")
LIMITS = PassLimits(page_rows=100, pass_rows=1_000, window_seconds=10)
ACT = Act("ada", "receiver fixed")
# Statements that touch no delivery, or are called by those that are thrown.
NOT_ABOUT_DELIVERIES = {
    "lock_pace",
    "start_run",
    "count_run",
    "finish_run",
    "ensure_partitions",
    "drop_expired_partitions",
    "disable_gone",
}


async def throw_claim(pool: Pool, delivery_id: str, number: int) -> None:
    (answer,) = await claim(pool, "w", [ClaimRequest(delivery_id, number, b"")], lease_margin_seconds=5)
    # Early: the number is past the row's, so the worker asks again for a while; nothing was claimed.
    assert answer in (Refused(delivery_id, "stale"), Refused(delivery_id, "early"))


async def throw_park(pool: Pool, delivery_id: str, number: int) -> None:
    await park(pool, [Parking(delivery_id, number, "rate", 0.0)])


async def throw_refuse(pool: Pool, delivery_id: str, number: int) -> None:
    assert await refuse(pool, delivery_id, number, "cannot be read") is None


async def throw_pass(pool: Pool, delivery_id: str, number: int) -> None:
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0


def throw_settle(state: Literal["succeeded", "pending", "dead"]) -> Callable[[Pool, str, int], Awaitable[None]]:
    async def throw(pool: Pool, delivery_id: str, number: int) -> None:
        waiting = {"delay_seconds": 0.0, "waiting_reason": "retry"} if state == "pending" else {}
        result = settlement(delivery_id, number, number, state=state, **waiting)
        assert await settle(pool, "w", [result], BREAKER) == [False]

    return throw


THROWS: dict[str, tuple[str, Callable[[Pool, str, int], Awaitable[None]]]] = {
    "claim": ("claim", throw_claim),
    "park": ("park", throw_park),
    "refuse": ("refuse", throw_refuse),
    "pass": ("dispatch_page", throw_pass),
    "success": ("settle", throw_settle("succeeded")),
    "retry": ("settle", throw_settle("pending")),
    "death": ("settle", throw_settle("dead")),
}


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, 2, "test") as pool:
        yield pool


def test_every_statement_that_could_move_a_delivery_is_thrown() -> None:
    files = resources.files("pipeline.ledger") / "sql"
    names = {
        name
        for subject in ("deliveries", "reconcile")
        for name in re.findall(r"^-- name: (\w+)$", (files / f"{subject}.sql").read_text(), re.MULTILINE)
    }
    assert names - NOT_ABOUT_DELIVERIES == {statement for statement, _ in THROWS.values()}


def test_the_table_of_transitions_says_the_same() -> None:
    leaving = [line for line in TRANSITIONS if line.source is not None and line.source.is_terminal]
    assert {line.source for line in leaving} == {State.SUCCEEDED, State.DEAD}
    assert {line.actor for line in leaving} == {Actor.OPERATOR}


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize("thrown", THROWS)
async def test_no_statement_of_worker_or_reconciler_moves_a_terminal_delivery(
    pool: Pool, connection: psycopg.Connection, thrown: str, state: str
) -> None:
    delivery_id = add_delivery(connection, "e", state)
    before = delivery(connection, delivery_id)
    # The current attempt and the current dispatch are both 1.
    for number in (1, 0, 2):
        await THROWS[thrown][1](pool, delivery_id, number)
    assert delivery(connection, delivery_id) == before
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 1
    assert {result for (result,) in connection.execute("select result from outrider.delivery_attempt")} <= {"late"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.tuples(st.sampled_from(sorted(THROWS)), st.integers(0, 3)), min_size=1, max_size=12))
async def test_nor_does_any_sequence_of_them(
    pool: Pool, connection: psycopg.Connection, order: list[tuple[str, int]]
) -> None:
    ids = {state: add_delivery(connection, state, state) for state in TERMINAL}
    before = {state: delivery(connection, ids[state]) for state in TERMINAL}
    for thrown, number in order:
        for delivery_id in ids.values():
            await THROWS[thrown][1](pool, delivery_id, number)
    assert {state: delivery(connection, ids[state]) for state in TERMINAL} == before


def test_cancel_leaves_terminal_deliveries(connection: psycopg.Connection) -> None:
    ids = [add_delivery(connection, state, state) for state in TERMINAL]
    before = [delivery(connection, delivery_id) for delivery_id in ids]
    assert cancel(connection, ids, ACT) == []
    assert [delivery(connection, delivery_id) for delivery_id in ids] == before


def test_an_operators_retry_leaves_them_and_is_on_record(connection: psycopg.Connection) -> None:
    ids = [add_delivery(connection, state, state) for state in TERMINAL]
    assert sorted(retry(connection, ids, ACT, force=True)) == sorted(ids)
    assert [delivery(connection, delivery_id)["state"] for delivery_id in ids] == ["enqueued", "enqueued"]
    row = connection.execute("select kind, operator, reason, counts from outrider.run").fetchone()
    assert row is not None
    assert row[:3] == ("delivery.retry", "ada", "receiver fixed")
    assert sorted(row[3]["delivery_ids"]) == sorted(ids)


def retry_one(connection: psycopg.Connection, delivery_id: str) -> None:
    retry(connection, [delivery_id], ACT, force=False)


def retry_all(connection: psycopg.Connection, delivery_id: str) -> None:
    selection = select(connection, Filter(state="dead", destination_id="acme"))
    retry_selection(connection, selection, ACT, lambda rows: None)


@pytest.mark.parametrize("act", [retry_one, retry_all])
def test_what_cannot_be_recorded_does_not_happen(
    connection: psycopg.Connection, act: Callable[[psycopg.Connection, str], None]
) -> None:
    delivery_id = add_delivery(connection, "e", "dead")
    connection.execute(
        "create function public.no_record() returns trigger language plpgsql as $$ begin "
        "raise exception 'disk full' using errcode = '53100'; end $$; "
        "create trigger no_record before insert or update on outrider.run "
        "for each row execute function public.no_record()"
    )
    with pytest.raises(psycopg.errors.DiskFull):
        act(connection, delivery_id)
    assert delivery(connection, delivery_id)["state"] == "dead"
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 1
