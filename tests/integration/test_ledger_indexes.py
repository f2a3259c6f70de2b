"""At a million deliveries every frequent question reads an index, and no more rows than it answers with.

The plans are those of the program's own statements. Each is run, so that what it read can be counted: an index that is
used and then filtered down from a million rows would be no better than none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pipeline.ledger.queries import query
from pipeline.ledger.replay import Choice
from pipeline.ledger.reports import BEGINNING, EXACT_ROWS, WAITING_STATES
from tests.fixtures.databases import fresh_database
from tests.support.ledger_rows import connect, scalar

ROWS = 1_000_100
DESTINATIONS = 20
"""``d0`` has half of all rows; the others share the rest."""
PAGE_ROWS = 100
PAGE_SCANNED = PAGE_ROWS + 1
"""Rows of one moment are put in order by their ids, so the first row of the next moment is read too."""

# Of 999 rows in a row: 600 succeeded, 50 dead, 347 pending, 1 enqueued, 1 leased.
LOAD = f"""
insert into outrider.event (event_id, event_type, content_type, payload, by_subscription)
select 'e' || n, 'test.event', 'application/json', '', false from generate_series(1, {ROWS}) as n;

insert into outrider.delivery (
  delivery_id, event_id, destination_id, state, attempt, dispatch_seq, next_attempt_at, lost_after, leased_at,
  lease_until, lease_owner, settled_at, created_at)
select 'dlv_' || n, 'e' || n, 'd' || case when n % 2 = 0 then 0 else 1 + n / 2 % {DESTINATIONS - 1} end, state, 1, 1,
       case state when 'pending' then now() + (n % 7200 - 3600) * interval '1 s' end,
       case state when 'enqueued' then now() + (n % 120 - 1) * interval '1 s' end,
       case state when 'leased' then now() end,
       case state when 'leased' then now() + (n % 60 - 1) * interval '1 s' end,
       case state when 'leased' then 'w' || n % 4 end,
       case when state in ('succeeded', 'dead') then now() - n * interval '10 ms' end,
       now() - ({ROWS} - n) * interval '100 ms'
from generate_series(1, {ROWS}) as n
cross join lateral (
  select case when n % 999 < 600 then 'succeeded' when n % 999 < 650 then 'dead' when n % 999 < 997 then 'pending'
              when n % 999 = 997 then 'enqueued' else 'leased' end as state
) s
"""


@pytest.fixture(scope="module")
def million(postgres_dsn: str, migrated_template: str) -> Iterator[psycopg.Connection]:
    """A million deliveries, analysed. Indexes are made after the rows, which takes a third of the time."""
    with fresh_database(postgres_dsn, template=migrated_template) as dsn, connect(dsn) as connection:
        connection.execute(
            "insert into outrider.destination (destination_id, url) "
            f"select 'd' || n, 'https://receiver.example' from generate_series(0, {DESTINATIONS - 1}) as n".encode()
        )
        connection.execute("set session_replication_role = replica; set maintenance_work_mem = '256MB'")
        indexes = connection.execute(
            "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index "
            "where indrelid = 'outrider.delivery'::regclass and not indisunique"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"drop index {name}".encode())
        connection.execute(LOAD.encode())
        for _, definition in indexes:
            connection.execute(definition.encode())
        connection.execute("reset session_replication_role")
        # A replay that has taken them all.
        connection.execute(
            "insert into outrider.replay_item (run_id, delivery_id, destination_id, dispatch_seq) "
            "select %s, delivery_id, destination_id, 1 from outrider.delivery where state = 'pending'",
            (UUID(int=1),),
        )
        connection.execute("analyze outrider.replay_item")
        connection.execute("vacuum analyze outrider.delivery")
        connection.execute("analyze outrider.event")
        yield connection


@dataclass(frozen=True)
class Scan:
    """A node that read ``delivery``, with the rows that it looked at, over all its loops."""

    kind: str
    index: str | None
    rows: float


def scans_of_delivery(connection: psycopg.Connection, statement: str, parameters: dict[str, Any]) -> list[Scan]:
    """Run the statement and undo it; what it read of ``delivery``. A node that never ran is left out."""
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            f"explain (analyze, timing off, format json) {statement}".encode(), parameters
        ).fetchone()
    assert row is not None
    return list(_scans(row[0][0]["Plan"]))


def _scans(node: dict[str, Any]) -> Iterator[Scan]:
    reads_table = node.get("Relation Name") == "delivery" and "Scan" in node["Node Type"]
    reads_index = node["Node Type"] == "Bitmap Index Scan" and node["Index Name"].startswith("delivery_")
    if (reads_table or reads_index) and node["Actual Loops"] > 0:
        looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield Scan(node["Node Type"], node.get("Index Name"), looked_at * node["Actual Loops"])
    for child in node.get("Plans", ()):
        yield from _scans(child)


def list_statement(part: str) -> str:
    return f"{query('reports', 'delivery_columns')}\n{query('reports', part)}"


AFTER = {"after_time": BEGINNING.time, "after_id": BEGINNING.delivery_id, "limit": PAGE_ROWS}
MIDDLE = {**AFTER, "after_time": datetime.now(UTC) - timedelta(seconds=ROWS * 0.05)}
WAITING = {"states": list(WAITING_STATES)}
LATER = datetime.now(UTC) + timedelta(days=1)
SELECTION = {
    "destination_id": "d1",
    "outcome": None,
    "created_until": LATER,
    "until": LATER,
    "after_time": BEGINNING.time,
    "after_id": BEGINNING.delivery_id,
}
REPLAY = {
    **Choice(mode="missing").parameters(),
    "run_id": UUID(int=1),
    "until": LATER,
    "after_destination": "",
    "after_time": BEGINNING.time,
    "after_id": BEGINNING.delivery_id,
    "page_rows": PAGE_ROWS,
}
ROOM = 50 * 10 + 50
"""What a destination with the default settings can start in ten seconds."""


@pytest.mark.parametrize(
    ("statement", "parameters", "indexes", "rows_max"),
    [
        pytest.param(
            query("reconcile", "dispatch_page"),
            # A page that no single reason fills, so that every part of the statement runs.
            {"page_rows": 2 * ROOM, "window_seconds": 10.0},
            {"delivery_due", "delivery_in_transport", "delivery_leased"},
            # What is on the way is counted up to each destination's room.
            DESTINATIONS * ROOM,
            id="a pass: due, lost and expired",
        ),
        pytest.param(
            query("reports", "oldest_due_seconds"), {}, {"delivery_due"}, DESTINATIONS, id="age of the oldest due"
        ),
        pytest.param(
            list_statement("waiting"),
            {**AFTER, **WAITING},
            {"delivery_unsettled"},
            PAGE_SCANNED,
            id="waiting, first page",
        ),
        pytest.param(
            list_statement("waiting"),
            {**MIDDLE, **WAITING},
            {"delivery_unsettled"},
            PAGE_SCANNED,
            id="waiting, a later page",
        ),
        pytest.param(list_statement("dead"), AFTER, {"delivery_dead"}, PAGE_SCANNED, id="dead, first page"),
        pytest.param(
            list_statement("all_of_destination"),
            {**MIDDLE, "destination_id": "d1", "states": ["pending", "enqueued", "leased", "succeeded", "dead"]},
            {"delivery_by_destination"},
            PAGE_SCANNED,
            id="of a destination, a later page",
        ),
        pytest.param(
            query("operator", "page_of_pending"),
            {**SELECTION, "page_rows": PAGE_ROWS},
            {"delivery_due"},
            PAGE_SCANNED,
            id="a page to cancel",
        ),
        pytest.param(
            query("deliveries", "park"),
            {"delivery_ids": ["dlv_997"], "dispatch_seqs": [1], "reasons": ["rate"], "delays_seconds": [1.0]},
            {"delivery_pkey"},
            1,
            id="parking one",
        ),
        pytest.param(
            query("replay", "page_of_ledger"),
            {**REPLAY, "after_destination": "d1"},
            {"delivery_by_destination"},
            PAGE_SCANNED,
            id="a replay's page of a destination",
        ),
        pytest.param(
            query("replay", "page_of_dead"), REPLAY, {"delivery_dead"}, PAGE_SCANNED, id="a replay's page of the dead"
        ),
        pytest.param(
            f"{query('replay', 'select_items')} and {query('replay', 'fits')} {query('replay', 'in_order')}",
            {**REPLAY, "delivery_ids": [f"dlv_{n}" for n in range(1, PAGE_ROWS)]},
            {"delivery_pkey"},
            PAGE_ROWS,
            id="what a replay takes of messages",
        ),
        pytest.param(
            query("replay", "dispatch_items"),
            {**REPLAY, "share": 0.5, "window_seconds": 10.0},
            {"delivery_due"},
            DESTINATIONS * ROOM,
            id="a replay's dispatches",
        ),
        pytest.param(
            query("payloads", "remove"),
            {"event_ids": [f"e{n}" for n in range(1, PAGE_ROWS)], "keep_days": 1},
            {"delivery_event_id_destination_id_key"},
            PAGE_ROWS,
            id="a page of payloads to remove",
        ),
    ],
)
def test_index_is_used_and_only_what_is_answered_is_read(
    million: psycopg.Connection, statement: str, parameters: dict[str, Any], indexes: set[str], rows_max: int
) -> None:
    scans = scans_of_delivery(million, statement, parameters)
    assert not [scan for scan in scans if scan.kind == "Seq Scan"]
    assert indexes <= {scan.index for scan in scans if scan.rows}
    assert max(scan.rows for scan in scans) <= rows_max


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        (list_statement("waiting_of_destination"), {**AFTER, **WAITING, "destination_id": "d1"}),
        (list_statement("waiting_of_destination"), {**AFTER, **WAITING, "destination_id": "d0"}),
        (list_statement("dead_of_destination"), {**AFTER, "destination_id": "d1"}),
        (query("operator", "page_of_dead"), {**SELECTION, "page_rows": PAGE_ROWS}),
        (query("operator", "page_of_dead"), {**SELECTION, "page_rows": None}),
        (query("operator", "page_of_pending"), {**SELECTION, "page_rows": None}),
        (query("operator", "page_of_enqueued"), {**SELECTION, "page_rows": None}),
        (query("operator", "unsettled_by_state"), {"destination_id": "d1"}),
        (query("reports", "waiting_by_reason"), {"rows_max": 1_000}),
        (query("reports", "counts_by_state"), {"exact_rows": EXACT_ROWS}),
    ],
)
def test_table_is_never_read_from_end_to_end(
    million: psycopg.Connection, statement: str, parameters: dict[str, Any]
) -> None:
    """Where states and destinations are mixed, an index narrows it down to less than what lies in all the table."""
    scans = scans_of_delivery(million, statement, parameters)
    assert scans
    assert not [scan for scan in scans if scan.kind == "Seq Scan"]
    assert max(scan.rows for scan in scans) < ROWS / 2


def test_payloads_that_are_old_are_found_by_index(million: psycopg.Connection) -> None:
    row = million.execute(
        f"explain (analyze, timing off, format json) {query('payloads', 'page')}",
        {**AFTER, "keep_days": 0, "page_rows": PAGE_ROWS},
    ).fetchone()
    assert row is not None
    (scan,) = row[0][0]["Plan"]["Plans"]
    assert scan["Index Name"] == "event_with_payload"
    assert scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) <= PAGE_SCANNED


def test_a_claim_counts_what_is_in_flight_by_index(million: psycopg.Connection) -> None:
    # As lock_pace leaves it.
    million.execute(
        "select set_config('outrider.claiming', (select jsonb_agg(destination_id)::text from outrider.destination), false)"
    )
    scans = scans_of_delivery(
        million,
        query("deliveries", "claim"),
        {
            "worker_id": "w",
            "lease_margin_seconds": 5.0,
            "delivery_ids": ["dlv_997", "dlv_1996"],
            "dispatch_seqs": [1, 1],
            "body_sha256s": [b"", b""],
        },
    )
    assert not [scan for scan in scans if scan.kind == "Seq Scan"]
    assert "delivery_leased" in {scan.index for scan in scans}
    in_flight = scalar(
        million,
        "select max(rows) from (select count(*) as rows from outrider.delivery "
        "where state = 'leased' group by destination_id) n",
    )
    assert max(scan.rows for scan in scans) <= 2 * in_flight
