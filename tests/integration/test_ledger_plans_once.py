"""A worker's sessions plan each statement once: that plan must be the right one while the tables are still empty.

It is kept for the session's lifetime, or until somebody analyses the tables, and they may hold a million rows by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from pipeline.ledger.pool import open_pool
from pipeline.ledger.queries import query
from tests.fixtures.databases import fresh_database
from tests.support.ledger_rows import connect


@pytest.fixture(scope="module")
def empty(postgres_dsn: str, migrated_template: str) -> Iterator[str]:
    with fresh_database(postgres_dsn, template=migrated_template) as dsn:
        yield dsn


def generic_plan(connection: psycopg.Connection, statement: str) -> dict[str, Any]:
    """The plan for parameters of any value: none of them reaches the planner."""
    names: dict[str, int] = {}
    numbered = re.sub(r"%\((\w+)\)[sb]", lambda found: f"${names.setdefault(found[1], len(names) + 1)}", statement)
    connection.execute(f"prepare once as {numbered.replace('%%', '%')}".encode())
    try:
        nulls = ", ".join(["null"] * len(names))
        row = connection.execute(f"explain (format json) execute once({nulls})".encode()).fetchone()
    finally:
        connection.execute("deallocate once")
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def indexes_of(node: dict[str, Any], table: str) -> Iterator[str | None]:
    """The index of each node that reads the table; None for one that reads all of it."""
    if node.get("Relation Name") == table and "Scan" in node["Node Type"]:
        bitmaps = [child["Index Name"] for child in node.get("Plans", ()) if "Index Name" in child]
        yield node.get("Index Name", bitmaps[0] if bitmaps else None)
    for child in node.get("Plans", ()):
        yield from indexes_of(child, table)


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("lock_pace", {"delivery_pkey"}),
        ("claim", {"delivery_pkey", "delivery_leased"}),
        ("settle", {"delivery_pkey"}),
        ("park", {"delivery_pkey"}),
        ("refuse", {"delivery_pkey"}),
    ],
)
def test_a_plan_made_on_empty_tables_finds_deliveries_by_their_ids(empty: str, name: str, indexes: set[str]) -> None:
    with connect(empty) as connection:
        connection.execute("set enable_seqscan = off; set plan_cache_mode = force_generic_plan")
        connection.execute("""select set_config('outrider.claiming', '["d"]', false)""")
        assert set(indexes_of(generic_plan(connection, query("deliveries", name)), "delivery")) == indexes


async def test_a_worker_s_sessions_plan_once_and_others_by_what_is_asked(empty: str) -> None:
    for plans_once, mode in ((True, "force_generic_plan"), (False, "auto")):
        async with open_pool(empty, 1, "test", plans_once=plans_once) as pool, pool.connection() as connection:
            cursor = await connection.execute(SQL("show plan_cache_mode"))
            assert await cursor.fetchone() == (mode,)
