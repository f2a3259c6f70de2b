"""A pass that is killed between any two of its statements leaves rows due or admitted, and its call to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from pipeline.ledger.pool import Pool, open_pool
from pipeline.ledger.sources import take_wakeup, wake
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import SourcePassResult, Waking
from tests.support.ledger_rows import connect, scalar, wait_until
from tests.support.source_world import CLAIM, SOURCE_ID, add_assets, business, source

ROWS = 25
STATEMENTS_MAX = 200
NEITHER_OR_BOTH = """
select count(*) from public.asset a
where (a.announced_at is null) = exists (select from outrider.event e where e.event_id = 'asset-' || a.asset_id)
"""


class KilledError(BaseException):
    """Nothing of the program handles it, as nothing handles SIGKILL."""


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with business(database, role_dsns, "live") as connection:
        yield connection


@pytest.fixture
async def pool(connection: psycopg.Connection, role_dsns: dict[str, str]) -> AsyncIterator[Pool]:
    async with open_pool(role_dsns["reconciler"], 4, "test") as pool:
        yield pool


async def passed(pool: Pool) -> SourcePassResult:
    """A pass for the call that waits; one that was killed holds nothing, since the lease is over at once."""
    taken = await take_wakeup(pool, SOURCE_ID, lease_seconds=-1)
    assert taken is not None
    waking = Waking(woken_by=taken.woken_by, operator=taken.operator, run_id=taken.run_id, counts=taken.counts)
    return await run_source_pass(pool, source(page_rows=10), waking)


async def test_killed_at_every_statement(
    pool: Pool, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = psycopg.AsyncCursor.execute
    own = asyncio.current_task()
    to_go = -1

    async def execute(self: psycopg.AsyncCursor[Any], *arguments: Any, **options: Any) -> Any:
        nonlocal to_go
        if asyncio.current_task() is not own:
            return await executed(self, *arguments, **options)  # of the pool's own tasks, which must not die of it
        if to_go == 0:
            self.connection.pgconn.finish()
            raise KilledError
        to_go -= 1
        return await executed(self, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", execute)
    for place in range(STATEMENTS_MAX):
        add_assets(connection, place * ROWS + 1, ROWS)
        run_id = await wake(pool, SOURCE_ID, woken_by="http", operator=None)
        to_go = place + 1  # the first is that which takes the call
        try:
            await passed(pool)
        except KilledError:
            to_go = -1
        else:
            break
        assert scalar(connection, NEITHER_OR_BOTH) == 0
        result = await passed(pool)
        assert result.run_id == run_id
        assert result.error is None
        assert result.tally.admitted == ROWS
        assert result.tally.existing == 0
    assert 20 < place < STATEMENTS_MAX - 1
    assert scalar(connection, NEITHER_OR_BOTH) == 0
    assert scalar(connection, "select count(*) from outrider.delivery") == (place + 1) * ROWS
    assert scalar(connection, "select count(*) from public.asset where announced_at is null") == 0
    assert scalar(connection, "select count(*) from outrider.run where finished_at is null") == 0
    assert scalar(connection, "select count(*) from outrider.source_wakeup") == 0


async def test_callers_share_the_call_that_waits(pool: Pool, connection: psycopg.Connection) -> None:
    first = await wake(pool, SOURCE_ID, woken_by="http", operator="api:a")
    assert await wake(pool, SOURCE_ID, woken_by="kafka", operator=None) == first
    taken = await take_wakeup(pool, SOURCE_ID, lease_seconds=60)
    assert taken is not None
    assert taken.run_id == first
    # Once a pass has it, what came later waits for the next one: the pass may have looked already.
    second = await wake(pool, SOURCE_ID, woken_by="http", operator="api:a")
    assert second != first
    assert scalar(connection, "select count(*) from outrider.source_wakeup") == 2
    assert await wake(pool, "nothing", woken_by="http", operator=None) is None


async def test_a_server_that_ends_the_session_leaves_the_call_to_the_next_pass(
    pool: Pool, connection: psycopg.Connection, database: str
) -> None:
    add_assets(connection, 1, ROWS)
    run_id = await wake(pool, SOURCE_ID, woken_by="cron", operator=None)
    held = source(
        claim=CLAIM.replace("where a.asset_id", "where pg_advisory_xact_lock_shared(42)::text <> 'x' and a.asset_id")
    )
    with connect(database) as holder:
        holder.execute("select pg_advisory_lock(42)")
        taken = await take_wakeup(pool, SOURCE_ID, lease_seconds=-1)
        assert taken is not None
        passing = asyncio.create_task(run_source_pass(pool, held, Waking(woken_by=taken.woken_by, run_id=taken.run_id)))
        end = (
            "select coalesce(bool_or(pg_terminate_backend(pid)), false) from pg_stat_activity where datname = current_database() "
            "and application_name = 'outrider test' and wait_event_type = 'Lock'"
        )
        await asyncio.to_thread(wait_until, lambda: bool(scalar(connection, end)), "the session at work is ended")
        with pytest.raises(psycopg.OperationalError):
            await passing
    assert scalar(connection, NEITHER_OR_BOTH) == 0
    result = await passed(pool)
    assert (result.run_id, result.tally.admitted, result.error) == (run_id, ROWS, None)
