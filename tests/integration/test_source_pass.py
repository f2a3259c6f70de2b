"""A pass over a source: claim and admission in one commit, bounded pages, one run, whatever the rows and other passes do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from pipeline.ledger.operator import Act, operator_connection
from pipeline.ledger.pool import Pool, open_pool
from pipeline.ledger.source_switches import switch_source
from pipeline.ledger.sources import Mode
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import SourcePassResult, Waking
from tests.support.ledger_rows import connect, scalar, wait_until
from tests.support.source_world import CLAIM, DUE, LOOKUP, add_assets, business, set_modes, source

TIMER = Waking(woken_by="interval")


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with business(database, role_dsns, "live") as connection:
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


async def test_overlapping_passes_divide_the_work(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 400)
    results = await asyncio.gather(*(run_source_pass(pool, source(page_rows=20), TIMER) for _ in range(4)))
    assert [result.error for result in results] == [None] * 4
    assert sum(result.tally.admitted for result in results) == 400
    assert sum(result.tally.existing for result in results) == 0
    assert scalar(connection, "select count(*) from outrider.delivery") == 400


async def test_the_budget_ends_a_pass_and_the_next_one_goes_on(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 100)
    first = await run_source_pass(pool, source(page_rows=20, pass_rows=50), TIMER)
    assert (first.tally.pages, first.tally.examined, first.is_complete) == (3, 50, False)
    stopped = await run_source_pass(pool, source(page_rows=10), TIMER, stop=lambda: True)
    assert (stopped.tally.pages, stopped.is_complete) == (1, False)
    # A page that takes longer than the whole budget: it is the pass's only one, and it counts.
    slow = CLAIM.replace("from public.asset d", "from public.asset d, pg_sleep(0.11)")
    by_time = await run_source_pass(pool, source(claim=slow, page_rows=10, pass_seconds=0.1), TIMER)
    assert (by_time.tally.pages, by_time.tally.examined, by_time.is_complete) == (1, 10, False)
    rest = await run_source_pass(pool, source(page_rows=10), TIMER)
    assert (rest.tally.examined, rest.is_complete) == (30, True)


async def test_a_row_that_is_refused_stays_due_and_stops_no_other(pool: Pool, connection: psycopg.Connection) -> None:
    past = "2020-01-01T00:00:00Z"
    add_assets(connection, 1, 60, payload="x" * 300_000, processed_at=past)
    add_assets(connection, 61, 60)
    result = await run_source_pass(pool, source(), TIMER)
    assert (result.tally.admitted, result.tally.refused, result.error) == (60, 60, None)
    assert result.is_complete
    assert result.oldest_due_after_seconds is not None
    assert result.oldest_due_after_seconds > 1e8  # years: they are still due
    assert scalar(connection, "select count(*) from public.asset where announced_at is null") == 60
    assert scalar(connection, "select count(*) from outrider.event") == 60
    assert "OU004" in scalar(connection, "select min(reason) from outrider.source_refusal")

    # The next pass leaves them alone for now; an operator's tries them again.
    assert (await run_source_pass(pool, source(), TIMER)).tally.refused == 0
    by_hand = Waking(woken_by="operator", retries_refused=True)
    assert (await run_source_pass(pool, source(), by_hand)).tally.refused == 60
    assert scalar(connection, "select max(times) from outrider.source_refusal") == 2
    connection.execute("update public.asset set payload = 'mended' where asset_id <= 60")
    mended = await run_source_pass(pool, source(), by_hand)
    assert (mended.tally.admitted, mended.oldest_due_after_seconds) == (60, 0)
    assert scalar(connection, "select count(*) from outrider.source_refusal") == 0


async def test_the_same_identity_with_other_bytes_is_refused(pool: Pool, connection: psycopg.Connection) -> None:
    connection.execute(
        "select outrider.admit('asset-1', 'asset.processed', 'other'::bytea, destinations => array['acme'])"
    )
    connection.execute(
        "select outrider.admit('asset-2', 'asset.processed', convert_to('{\"asset\":2}', 'UTF8'), destinations => array['acme'])"
    )
    add_assets(connection, 1, 3)
    result = await run_source_pass(pool, source(), TIMER)
    assert (result.tally.admitted, result.tally.existing, result.tally.refused) == (1, 1, 1)
    (reason,) = result.refusals.values()
    assert reason.startswith("OU001")
    assert scalar(connection, "select payload from outrider.event where event_id = 'asset-1'") == b"other"


async def test_a_type_that_the_review_did_not_see_is_refused(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 1)
    result = await run_source_pass(pool, source(event_types=["asset.removed"]), TIMER)
    assert "event_types" in result.refusals["asset-1"]
    assert scalar(connection, "select count(*) from outrider.event") == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"claim": CLAIM.replace("public.asset a", "public.nothing a")}, "nothing"),
        ({"claim": CLAIM.replace("limit %(limit)s", "limit %(limit)s * 2")}, "end it with its limit"),
        ({"claim": CLAIM.replace(" as event_type", " as kind")}, "claim has no column event_type"),
        ({"claim": CLAIM.replace("as due_at", "as deliver_ad")}, "deliver_ad"),
        (
            {"claim": CLAIM.replace("coalesce(a.payload, '{\"asset\":' || a.asset_id || '}')", "to_jsonb(a)")},
            "must be bytea",
        ),
        ({"claim": CLAIM.replace("'asset-' || a.asset_id as", "'asset'::text as")}, "twice in one page"),
        ({"claim": CLAIM.replace("'asset-' || a.asset_id as", "null::text as")}, "empty or NULL"),
        ({"role": "nobody_at_all"}, "nobody_at_all"),
        ({"claim": CLAIM + "; drop table public.asset"}, "multiple commands"),
        ({"due": "select 'x'::text as event_id, null::timestamptz as due_at limit %(limit)s", "shards": 1}, "NULL"),
    ],
)
async def test_what_is_wrong_with_a_source_is_in_its_run_and_changes_nothing(
    pool: Pool, connection: psycopg.Connection, changes: dict[str, object], said: str
) -> None:
    add_assets(connection, 1, 60)
    if changes.get("shards") == 1:
        connection.execute("update outrider.source_shard set shard_count = 1")
    wrong = source(**changes)
    result = await run_source_pass(pool, wrong, TIMER)
    assert result.error is not None
    assert said in result.error
    assert "\n" not in result.error
    assert run_row(connection, result)["error"] == result.error
    assert scalar(connection, "select count(*) from public.asset where announced_at is null") >= 10
    assert scalar(connection, "select count(*) from outrider.event") == 60 - scalar(
        connection, "select count(*) from public.asset where announced_at is null"
    )


async def test_the_statements_run_as_the_sources_role(
    pool: Pool, connection: psycopg.Connection, role_dsns: dict[str, str]
) -> None:
    login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
    role = f"media_{connection.info.dbname}"
    connection.execute(f"revoke all on public.asset from {login}".encode())
    connection.execute(f"create role {role} in role outrider_application".encode())
    try:
        connection.execute(f"grant select, update on public.asset to {role}".encode())
        add_assets(connection, 1, 5)
        refused = await run_source_pass(pool, source(role=role), TIMER)
        assert refused.error is not None
        assert "permission denied to set role" in refused.error
        connection.execute(f"grant {role} to {login}".encode())
        result = await run_source_pass(pool, source(role=role), TIMER)
        assert (result.error, result.tally.admitted) == (None, 5)
    finally:
        connection.execute(f"drop owned by {role}".encode())
        connection.execute(f"drop role {role}".encode())


async def test_a_claim_that_leaves_its_rows_due_is_found_out(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 60)
    forgetful = source(claim=CLAIM.replace("set announced_at = clock_timestamp()", "set announced_at = null"))
    for admitted, existing in ((50, 0), (0, 50)):
        result = await run_source_pass(pool, forgetful, TIMER)
        assert result.error is not None
        assert "again" in result.error
        assert (result.tally.admitted, result.tally.existing) == (admitted, existing)


async def test_a_switch_waits_for_the_page_and_ends_the_pass(
    pool: Pool, connection: psycopg.Connection, role_dsns: dict[str, str]
) -> None:
    """When ``source set`` returns, nothing is claimed under the old mode any more."""
    add_assets(connection, 1, 100)
    slow = source(
        claim=CLAIM.replace(
            "where a.asset_id", "where pg_advisory_xact_lock_shared(42)::text is not null and a.asset_id"
        )
    )

    def waiting(application: str) -> bool:
        return bool(
            scalar(
                connection,
                "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
                "and application_name = %s",
                application,
            )
        )

    def switch_off() -> int:
        with operator_connection(role_dsns["operator"]) as operator:
            switch_source(operator, "assets", Act("ada", "test"), mode=Mode.OFF, shards=None, enabled=None)
        return int(scalar(connection, "select count(*) from outrider.event"))

    with connect(role_dsns["operator"]) as holder:
        holder.execute("select pg_advisory_lock(42)")
        passing = asyncio.create_task(run_source_pass(pool, slow, TIMER))
        await asyncio.to_thread(wait_until, lambda: waiting("outrider test"), "the page is at work")
        switching = asyncio.create_task(asyncio.to_thread(switch_off))
        await asyncio.to_thread(wait_until, lambda: waiting("outrider cli"), "the switch waits for it")
        holder.execute("select pg_advisory_unlock(42)")
        assert await switching == 50
    result = await passing
    assert (result.error, result.tally.pages, result.tally.admitted) == (None, 1, 50)
    assert scalar(connection, "select count(*) from outrider.event") == 50


async def test_modes_of_another_number_of_shards_do_not_count(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 20)
    result = await run_source_pass(pool, source(shards=8), TIMER)
    assert (result.tally.examined, list(result.shards)) == (0, [])


async def test_only_live_shards_are_claimed(pool: Pool, connection: psycopg.Connection) -> None:
    add_assets(connection, 1, 100)
    set_modes(connection, "off", 0, 1)
    result = await run_source_pass(pool, source(), TIMER)
    left = "select count(*) from public.asset where announced_at is null and outrider.shard_of(publisher, 4) in (0, 1)"
    assert scalar(connection, left) == 100 - result.tally.admitted
    assert 0 < result.tally.admitted < 100
    assert scalar(connection, "select outrider.live_shards('assets')") == [2, 3]


FUNCTION = """
create schema media;
create function media.claim_due(page_rows integer, refused text[])
returns table (event_id text, event_type text, payload bytea)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update public.asset a set announced_at = clock_timestamp()
  where a.asset_id in (
    select d.asset_id from public.asset d
    where d.announced_at is null and 'asset-' || d.asset_id <> all (refused)
    order by d.processed_at limit page_rows for update skip locked)
  returning 'asset-' || a.asset_id, 'asset.processed', convert_to('{}', 'UTF8')
$$;
revoke all on function media.claim_due from public;
"""


async def test_a_claim_may_be_a_function_with_rights_of_its_own(
    pool: Pool, connection: psycopg.Connection, role_dsns: dict[str, str]
) -> None:
    login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
    connection.execute(FUNCTION)
    connection.execute(f"revoke all on public.asset from {login}; grant usage on schema media to {login};".encode())
    connection.execute(
        f"grant execute on function media.claim_due to {login}; grant select on public.asset to {login}".encode()
    )
    connection.execute("update outrider.source_shard set shard_count = 1")
    add_assets(connection, 1, 60)
    by_function = source(
        shards=1,
        claim="select * from media.claim_due(%(limit)s, %(refused)s)",
        due=DUE.replace("= any (%(shards)s)", ">= 0").replace("%(shard_count)s", "1"),
        lookup=LOOKUP.replace("= any (%(shards)s)", ">= 0").replace("%(shard_count)s", "1"),
    )
    result = await run_source_pass(pool, by_function, TIMER)
    assert (result.error, result.tally.unsubscribed, result.oldest_due_after_seconds) == (None, 60, 0)


async def test_admission_itself_may_take_a_row_off_what_is_due(pool: Pool, connection: psycopg.Connection) -> None:
    claim = """
    select 'asset-' || a.asset_id as event_id, 'asset.processed' as event_type, '{}' as payload, array['acme'] as destinations
    from public.asset a
    where not exists (select from outrider.event e where e.event_id = 'asset-' || a.asset_id)
      and 'asset-' || a.asset_id <> all (%(refused)s)
      and outrider.shard_of(a.publisher, %(shard_count)s) = any (%(shards)s)
    order by a.processed_at
    limit %(limit)s
    for update skip locked
    """
    add_assets(connection, 1, 200)
    results = await asyncio.gather(*(run_source_pass(pool, source(claim=claim, page_rows=20), TIMER) for _ in range(3)))
    assert [result.error for result in results] == [None] * 3
    assert sum(result.tally.admitted for result in results) == 200


@pytest.mark.parametrize(
    "headers",
    [
        '{"n": ' + "9" * 5_000 + "}",
        '{"n": 99999999999999999999}',
        '{"n": 1e400}',
        '{"n": ' + "[" * 3_000 + "]" * 3_000 + "}",
        '{"n": "\\ud800"}',
        '["n"]',
    ],
    ids=["long number", "more than 64 bits", "more than a float", "nested", "half a character", "list"],
)
async def test_headers_that_are_no_texts_refuse_their_row_alone(
    pool: Pool, connection: psycopg.Connection, headers: str
) -> None:
    add_assets(connection, 1, 3)
    claim = CLAIM.replace(
        "a.processed_at as due_at",
        f"a.processed_at as due_at, case a.asset_id when 2 then '{headers}'::json end as headers",
    )
    result = await run_source_pass(pool, source(claim=claim), TIMER)
    assert result.error is None
    assert result.refusals == {"asset-2": "headers is not a JSON object of texts"}
    assert result.tally.admitted == 2
