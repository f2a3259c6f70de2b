"""A pass over a source: claim and admission in one commit, bounded pages, one run, whatever the rows and other passes do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from pipeline.ledger.pool import Pool, open_pool
from pipeline.reconcile.source_pass import SourcePassResult, Waking, run_source_pass
from tests.support.ledger_rows import connect, scalar
from tests.support.source_world import CLAIM, add_assets, make_assets, set_modes, source

TIMER = Waking(woken_by="interval")


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
        make_assets(connection, reconciler=str(login))
        set_modes(connection, "live")
        yield connection


@pytest.fixture
async def pool(connection: psycopg.Connection, role_dsns: dict[str, str]) -> AsyncIterator[Pool]:
    async with open_pool(role_dsns["reconciler"], 4, "test") as pool:
        yield pool


def run_row(connection: psycopg.Connection, result: SourcePassResult) -> dict[str, object]:
    cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
    row = cursor.execute("select * from outrider.run where run_id = %s", (result.run_id,)).fetchone()
    assert row is not None
    return row


async def test_due_rows_are_admitted_in_pages_under_one_run(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 120)
    result = await run_source_pass(pool, source(), TIMER)
    assert (result.tally.pages, result.tally.examined, result.tally.admitted) == (3, 120, 120)
    assert result.error is None
    assert result.is_complete
    assert scalar(connection, "select count(*) from outrider.event") == 120
    assert scalar(connection, "select count(*) from public.asset where announced_at is null") == 0
    row = run_row(connection, result)
    assert (row["kind"], row["woken_by"], row["error"]) == ("source.pass", "interval", None)
    assert row["parameters"] == {"source": "assets", "shards": [0, 1, 2, 3], "enabled": True}
    counts = row["counts"]
    assert isinstance(counts, dict)
    assert counts["oldest_due_before_seconds"] > 0
    assert counts["oldest_due_after_seconds"] == 0
    assert counts["duration_seconds"] > 0
    assert row["finished_at"] is not None
