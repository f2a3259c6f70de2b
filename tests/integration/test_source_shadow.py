"""Shadow mode: nothing is done, and whatever one path has and the other has not is told by its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from pipeline.cli.source_shadow_command import plain
from pipeline.ledger.pool import Pool, open_pool
from pipeline.ledger.source_shadow import shadow_report
from pipeline.reconcile.shadow import LookResult, look
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import Waking
from tests.support.ledger_rows import ledger, scalar
from tests.support.program import Outrider
from tests.support.source_world import CLAIM, DUE, SOURCE_ID, add_assets, business, set_modes, source

TIMER = Waking(woken_by="interval")
LIVE_PATH = """
with taken as (
  update public.asset a set announced_at = clock_timestamp()
  where a.asset_id between %s and %s and a.announced_at is null returning a.*
)
select count(*) from taken t
cross join lateral outrider.admit(
  'asset-' || t.asset_id, 'asset.processed', convert_to(%s || t.asset_id || '}', 'UTF8'), destinations => array['acme'])
"""


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with business(database, role_dsns, "shadow") as connection:
        yield connection


@pytest.fixture
async def pool(connection: psycopg.Connection, role_dsns: dict[str, str]) -> AsyncIterator[Pool]:
    async with open_pool(role_dsns["reconciler"], 4, "test") as pool:
        yield pool


async def looked(pool: Pool, shards: tuple[int, ...] = (0, 1, 2, 3), **changes: Any) -> LookResult:
    result = await look(pool, source(**changes), shards, TIMER)
    assert result.error is None
    assert result.is_complete
    return result


def admit(connection: psycopg.Connection, first: int, last: int, body: str = '{"asset":') -> None:
    """As the path does that is live now."""
    connection.execute(LIVE_PATH.encode(), (first, last, body))


def report(connection: psycopg.Connection, grace_seconds: float = 0) -> dict[str, Any]:
    return plain(shadow_report(connection, SOURCE_ID, grace_seconds=grace_seconds, limit=1_000))


def rows(connection: psycopg.Connection, grace_seconds: float = 0) -> dict[str, int]:
    return {name: count for name, count in report(connection, grace_seconds)["rows"].items() if count}


def ids(connection: psycopg.Connection, difference: str) -> list[str]:
    return sorted(d["event_id"] for d in report(connection)["differences"] if d["difference"] == difference)


async def test_a_look_changes_nothing_but_what_it_writes_down(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 120)
    before = ledger(connection)
    assets = connection.execute("select * from public.asset order by 1").fetchall()
    result = await looked(pool)
    assert (result.candidates, result.direct) == (120, 120)
    after = ledger(connection)
    assert after.pop("run") != before.pop("run")
    assert after == before
    assert connection.execute("select * from public.asset order by 1").fetchall() == assets
    assert rows(connection, grace_seconds=60) == {"waiting": 120}
    assert rows(connection) == {"candidate_only": 120}


async def test_paths_that_agree_have_no_difference_and_their_lags(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 40, processed_at="2026-01-01T00:00:00Z")
    await looked(pool)
    admit(connection, 1, 40)
    await looked(pool)
    found = report(connection)
    assert (found["rows"]["both"], found["difference_rows"], found["complete"]) == (40, 0, 2)
    assert 0 < found["lag_seconds"]["candidate"]["max"] < found["lag_seconds"]["live"]["p50"]


async def test_ids_on_either_side_only_are_told(pool: Pool, connection: psycopg.Connection) -> None:
    """Each kind of difference at once, each with its own rows."""
    # A claim that forgets a publisher, and one that takes what is not due.
    claim = CLAIM.replace("where d.announced_at is null\n", "where d.announced_at is null and d.asset_id <> 3\n")
    due = DUE.replace("where a.announced_at is null\n", "where a.announced_at is null and a.asset_id <> 4\n")
    add_assets(connection, 1, 6)
    for _ in range(2):
        await looked(pool, claim=claim, due=due)
    admit(connection, 1, 1)
    admit(connection, 2, 2, body='{"other":')
    # Was due through whole looks, and neither claim nor direct query saw it: the live path knows better.
    hidden = {"claim": claim.replace("<> 3", "not in (3, 7)"), "due": due.replace("<> 4", "not in (4, 7)")}
    add_assets(connection, 7, 1)
    await looked(pool, **hidden)
    admit(connection, 7, 7)
    # Became due and was admitted between two looks: no difference.
    add_assets(connection, 8, 1)
    admit(connection, 8, 8)
    await looked(pool, **hidden)
    assert rows(connection) == {
        "both": 1,
        "differs": 1,
        "due_only": 1,
        "claim_only": 1,
        "candidate_only": 2,
        "live_only": 1,
        "between_looks": 1,
    }
    assert ids(connection, "differs") == ["asset-2"]
    assert ids(connection, "due_only") == ["asset-3"]
    assert ids(connection, "claim_only") == ["asset-4"]
    assert ids(connection, "candidate_only") == ["asset-5", "asset-6"]
    assert ids(connection, "live_only") == ["asset-7"]
    (live_only,) = (d for d in report(connection)["differences"] if d["difference"] == "live_only")
    assert live_only["live_lag_seconds"] > 0
    assert live_only["candidate_lag_seconds"] is None


async def test_rows_that_the_live_path_holds_are_no_difference_for_however_many_looks(
    pool: Pool, connection: psycopg.Connection, database: str
) -> None:
    add_assets(connection, 1, 10)
    with psycopg.connect(database) as live:
        live.execute(LIVE_PATH.encode(), (1, 10, '{"asset":'))
        for _ in range(3):
            result = await looked(pool)
            assert (result.candidates, result.direct) == (0, 10)
        assert rows(connection, grace_seconds=60) == {"waiting": 10}
        # Held beyond the grace: as long as it lasts, nobody admits them.
        assert rows(connection) == {"due_only": 10}
    await looked(pool)
    assert rows(connection) == {"between_looks": 10}


async def test_rows_that_the_claim_passes_over_are_a_difference_when_the_live_path_admits_them(
    pool: Pool, connection: psycopg.Connection
) -> None:
    claim = CLAIM.replace("where d.announced_at is null\n", "where d.announced_at is null and d.asset_id <> 3\n")
    add_assets(connection, 1, 5)
    for _ in range(2):
        await looked(pool, claim=claim)
    admit(connection, 1, 5)
    await looked(pool, claim=claim)
    assert rows(connection) == {"both": 4, "live_only": 1}
    assert ids(connection, "live_only") == ["asset-3"]


async def test_only_shadow_shards_are_compared(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 60)
    set_modes(connection, "live", 0)
    set_modes(connection, "off", 1)
    in_shards = "select count(*) from public.asset where outrider.shard_of(publisher, 4) = any (%s)"
    shadowed, live = (scalar(connection, in_shards, shards) for shards in ([2, 3], [0]))
    result = await run_source_pass(pool, source(), TIMER)
    assert (result.tally.admitted, list(result.shadow_shards)) == (live, [2, 3])
    admit(connection, 1, 60)
    assert (await looked(pool, (2, 3))).candidates == 0
    # Admitted between shadow's begin and the first look; of the other shards nothing is said.
    assert rows(connection) == {"between_looks": shadowed}


async def test_what_is_wrong_is_in_the_looks_run(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 60)
    result = await look(
        pool,
        source(claim=CLAIM.replace("'asset-' || d.asset_id <> all (%(refused)s)", "%(refused)s is not null")),
        (0, 1, 2, 3),
        TIMER,
    )
    assert result.error is not None
    assert "pass over %(refused)s" in result.error
    assert not result.is_complete
    assert scalar(connection, "select error from outrider.run where run_id = %s", result.run_id) == result.error


async def test_the_command_ends_with_1_where_there_is_a_difference(
    pool: Pool, connection: psycopg.Connection, outrider: Outrider
) -> None:
    nothing_yet = outrider("source", "shadow", SOURCE_ID)
    assert nothing_yet.exit_code == 1
    assert "nothing was compared" in nothing_yet.stderr
    add_assets(connection, 1, 5)
    await looked(pool)
    admit(connection, 1, 4)
    await looked(pool)
    assert outrider("source", "shadow", SOURCE_ID).exit_code == 0
    different = outrider("source", "shadow", SOURCE_ID, "--grace-seconds", "0")
    assert different.exit_code == 1
    assert "asset-5" in different.stdout
    as_json = outrider("source", "shadow", SOURCE_ID, "--grace-seconds", "0", "--json")
    assert (as_json.exit_code, as_json.json["rows"]["both"], as_json.json["difference_rows"]) == (1, 4, 1)
    assert outrider("source", "shadow", "nothing").exit_code == 1
