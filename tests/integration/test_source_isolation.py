"""A claim that fails over one row: that row is refused with the reason, and the others are admitted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from pipeline.ledger.pool import Pool, open_pool
from pipeline.reconcile.source_isolation import ISOLATED_MAX
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import Waking
from tests.support.ledger_rows import scalar
from tests.support.source_world import CLAIM, DUE, add_assets, business, source

TIMER = Waking(woken_by="interval")
BY_HAND = Waking(woken_by="operator", retries_refused=True)
OPEN = "select count(*) from public.asset where announced_at is null"
PAYLOAD = "coalesce(a.payload, '{\"asset\":' || a.asset_id || '}')"
CASTS = CLAIM.replace(PAYLOAD, "coalesce(a.payload, '1')::integer::text")
"""Fails for a payload that is no number."""
RAISES = """
create function public.checked(payload text) returns text language plpgsql as $$
begin
  if payload = 'bad' then raise exception 'no such asset' using errcode = 'MD001'; end if;
  return coalesce(payload, '{}');
end $$
"""


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with business(database, role_dsns, "live") as connection:
        yield connection


@pytest.fixture
async def pool(connection: psycopg.Connection, role_dsns: dict[str, str]) -> AsyncIterator[Pool]:
    async with open_pool(role_dsns["reconciler"], 4, "test") as pool:
        yield pool


def refusals(connection: psycopg.Connection) -> dict[str, tuple[str, int]]:
    """Reason and times by event id."""
    rows = connection.execute("select event_id, reason, times from outrider.source_refusal").fetchall()
    return {event_id: (reason, times) for event_id, reason, times in rows}


async def test_the_row_is_refused_tried_again_and_admitted_once_it_is_mended(
    pool: Pool, connection: psycopg.Connection
) -> None:
    add_assets(connection, 1, 120)
    connection.execute("update public.asset set payload = 'bad' where asset_id in (7, 8, 90)")
    result = await run_source_pass(pool, source(claim=CASTS), TIMER)
    assert (result.error, result.is_complete) == (None, True)
    assert (result.tally.admitted, result.tally.refused) == (117, 3)
    assert result.refusals.keys() == {"asset-7", "asset-8", "asset-90"} == refusals(connection).keys()
    reason = 'the claim fails for it: InvalidTextRepresentation: invalid input syntax for type integer: "bad"'
    assert set(refusals(connection).values()) == {(reason, 1)}
    assert (scalar(connection, OPEN), scalar(connection, "select count(*) from outrider.event")) == (3, 117)

    # It is not in the way of what comes, and is not tried before its time.
    add_assets(connection, 121, 10)
    following = await run_source_pass(pool, source(claim=CASTS), TIMER)
    assert (following.error, following.tally.admitted, following.tally.refused) == (None, 10, 0)
    assert (await run_source_pass(pool, source(claim=CASTS), BY_HAND)).tally.refused == 3
    assert {times for _, times in refusals(connection).values()} == {2}
    connection.execute("update public.asset set payload = '5' where payload = 'bad'")
    connection.execute("update outrider.source_refusal set retry_at = now()")
    mended = await run_source_pass(pool, source(claim=CASTS), TIMER)
    assert (mended.error, mended.tally.admitted, mended.oldest_due_after_seconds) == (None, 3, 0)
    assert refusals(connection) == {}


async def test_what_a_function_raises_and_what_takes_another_order_are_found_too(
    pool: Pool, connection: psycopg.Connection
) -> None:
    connection.execute(RAISES)
    add_assets(connection, 1, 60)
    connection.execute("update public.asset set payload = 'bad' where asset_id = 30")
    claim = CLAIM.replace(PAYLOAD, "public.checked(a.payload)").replace(
        "d.processed_at, d.asset_id", "d.processed_at desc, d.asset_id desc"
    )
    result = await run_source_pass(pool, source(claim=claim, page_rows=8), TIMER)
    assert (result.error, result.tally.admitted, result.is_complete) == (None, 59, True)
    assert "no such asset" in result.refusals["asset-30"]


async def test_a_deferred_constraint_that_one_row_breaks_refuses_it_alone(
    pool: Pool, connection: psycopg.Connection
) -> None:
    connection.execute(
        "create table public.announced (publisher text primary key deferrable initially deferred);"
        "grant insert on public.announced to public"
    )
    add_assets(connection, 1, 12)
    connection.execute("insert into public.announced select publisher from public.asset where asset_id = 3")
    claim = f"with c as ({CLAIM}), n as (insert into public.announced select 'publisher-' || right(event_id, 1) from c) select * from c"
    result = await run_source_pass(pool, source(claim=claim), TIMER)
    assert result.error is None
    # Ten publishers for twelve rows: of two rows that exclude each other one is admitted.
    assert (result.tally.admitted, result.tally.refused) == (9, 3)
    assert "duplicate key" in result.refusals["asset-3"]


async def test_times_that_end_no_calendar_are_no_error_of_the_page(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 3)
    connection.execute("update public.asset set processed_at = '-infinity' where asset_id = 1")
    claim = CLAIM.replace(
        "a.processed_at as due_at",
        "a.processed_at as due_at, case a.asset_id when 2 then timestamptz 'infinity' end as deliver_at",
    )
    result = await run_source_pass(pool, source(claim=claim), TIMER)
    assert (result.error, result.tally.admitted) == (None, 2)
    assert result.refusals["asset-2"].startswith("OU005: deliver_at")


async def test_a_budget_that_is_over_at_once_still_gets_on(pool: Pool, connection: psycopg.Connection) -> None:
    """Every pass admits or refuses something, so that passes end however short they are."""
    add_assets(connection, 1, 20)
    connection.execute("update public.asset set payload = 'bad' where asset_id = 13")
    brief = source(claim=CASTS.replace("from public.asset d", "from public.asset d, pg_sleep(0.11)"), pass_seconds=0.1)
    handled = []
    for _ in range(20):
        result = await run_source_pass(pool, brief, TIMER)
        handled.append(result.tally.admitted + result.tally.refused)
        assert result.error is None
        if result.is_complete or scalar(connection, OPEN) == 1:
            break
    assert sum(handled) >= 20
    assert 0 not in handled
    assert refusals(connection).keys() == {"asset-13"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # A condition that the server reads for every row, whether it is taken or not.
        (
            {"claim": CLAIM.replace("where d.announced_at is null", "where coalesce(d.payload, '1')::integer > 0")},
            "with what is due left out, this fails",
        ),
        ({"claim": CASTS, "due": DUE.replace("limit %", "limit 1 / 0 + %")}, "division by zero"),
        ({"claim": CASTS, "due": DUE.replace("where", "where false and")}, "no due row fails alone, from none on"),
    ],
)
async def test_what_cannot_be_told_apart_ends_the_pass_and_says_why(
    pool: Pool, connection: psycopg.Connection, changes: dict[str, object], said: str
) -> None:
    add_assets(connection, 1, 60)
    connection.execute("update public.asset set payload = 'bad' where asset_id = 7")
    result = await run_source_pass(pool, source(**changes), TIMER)
    assert result.error is not None
    assert "which row of a page of 50 is the reason cannot be told" in result.error
    assert said in result.error
    assert refusals(connection) == {}
    assert scalar(connection, "select count(*) from outrider.event") == 60 - scalar(connection, OPEN)


async def test_a_due_query_that_fails_holds_up_no_claim(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 60)
    result = await run_source_pass(pool, source(due=DUE.replace("limit %", "limit 1 / 0 + %")), TIMER)
    assert result.error == "due fails: DivisionByZero: division by zero"
    assert (result.tally.admitted, result.oldest_due_before_seconds, result.is_complete) == (60, None, False)


async def test_a_claim_that_fails_for_every_row_ends_the_pass(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, ISOLATED_MAX + 50)
    result = await run_source_pass(
        pool, source(claim=CLAIM.replace(PAYLOAD, "(1 / (a.asset_id - a.asset_id))::text")), TIMER
    )
    assert result.error is not None
    assert result.error.startswith(f"the claim fails for each of {ISOLATED_MAX} rows, the last one: 'asset-")
    assert (result.tally.admitted, result.tally.refused) == (0, ISOLATED_MAX)
    assert scalar(connection, OPEN) == ISOLATED_MAX + 50
