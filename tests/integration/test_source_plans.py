"""Statements about sources read an index where there are many runs, and many rows in the shadow."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from pipeline.ledger.queries import query
from tests.support.ledger_rows import add_destination
from tests.support.source_world import set_modes

ROWS = 40_000


@pytest.fixture(scope="module")
def filled(module_database: str) -> Iterator[psycopg.Connection]:
    """Passes of a hundred sources, and what looks saw of one."""
    with psycopg.connect(module_database, autocommit=True) as connection:
        add_destination(connection)
        set_modes(connection, "shadow")
        connection.execute(
            "insert into outrider.run (kind, woken_by, parameters, started_at, finished_at, counts) "
            "select 'source.shadow', 'interval', jsonb_build_object('source', case when n %% 100 = 0 then 'assets' else 's' || n %% 100 end), "
            "now() - n * interval '1 second', now() - n * interval '1 second', '{\"is_complete\": true}' "
            "from generate_series(1, %s) n",
            (ROWS,),
        )
        connection.execute(
            "insert into outrider.source_shadow (source_id, event_id, first_at, due_at, live_at) "
            "select 'assets', 'asset-' || n, now() - n * interval '1 second', now(), case when n %% 100 > 0 then now() end "
            "from generate_series(1, %s) n",
            (ROWS,),
        )
        connection.execute("analyze outrider.run, outrider.source_shadow")
        yield connection


@pytest.mark.parametrize(
    ("subject", "name", "parameters", "index"),
    [
        ("sources", "passes", {"limit": 10}, "run_of_source"),
        ("sources", "list_sources", {}, "run_of_source"),
        ("source_shadow", "begin", {}, "run_of_source"),
        ("source_shadow", "looks", {}, "run_of_source"),
        ("source_shadow", "mark_live", {}, "source_shadow_waiting"),
        ("source_shadow", "forget", {"days": 7}, "source_shadow_by_time"),
        ("sources", "end_wakeup", {"run_id": uuid.uuid4()}, "source_wakeup_pkey"),
        (
            "source_shadow",
            "admitted",
            {"after_time": datetime.now(UTC), "after_id": "", "event_types": ["t"], "limit": 10},
            "event_by_time",
        ),
    ],
)
def test_an_index_is_read(
    filled: psycopg.Connection, subject: str, name: str, parameters: dict[str, Any], index: str
) -> None:
    values = {"source_id": "assets", **parameters}
    with filled.transaction(force_rollback=True):
        # As a reconciler's session has it; an operator's reads what it must.
        filled.execute("set local enable_seqscan = off")
        row = filled.execute(f"explain (format json) {query(subject, name)}".encode(), values).fetchone()
    assert row is not None
    plan = json.dumps(row[0])
    assert index in plan
    assert '"Relation Name": "run"' not in plan or "Seq Scan on run" not in plan
