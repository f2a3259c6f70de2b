"""The operator's transitions of deliveries: retry and cancel. Each commits with the run that records it.

Every statement carries its condition, so an act that comes too late, or twice, moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import psycopg
from psycopg.rows import scalar_row
from psycopg.types.json import Json

from pipeline.ledger.operator import Act, record_run
from pipeline.ledger.queries import query

PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """All deliveries of one destination in a state, as of a time, so that the act ends."""

    destination_id: str
    state: Literal["dead", "pending"]
    until: datetime
    rows: int


def select_dead(connection: psycopg.Connection, destination_id: str) -> Selection:
    """What ``retry_selection`` would move now."""
    return _select(connection, destination_id, "dead")


def select_pending(connection: psycopg.Connection, destination_id: str) -> Selection:
    """What ``cancel_selection`` would move now."""
    return _select(connection, destination_id, "pending")


def retry(connection: psycopg.Connection, delivery_ids: Sequence[str], act: Act, *, force: bool) -> list[str]:
    """Hand dead deliveries to Kafka again, succeeded ones too with ``force``; returns the ids that moved."""
    with connection.transaction():
        moved = _retry(connection, delivery_ids, force=force)
        if moved:
            record_run(connection, "delivery.retry", act, {"moved": len(moved), "delivery_ids": moved, "force": force})
    return moved


def cancel(connection: psycopg.Connection, delivery_ids: Sequence[str], act: Act) -> list[str]:
    """End pending deliveries; returns the ids that moved. Those in transport or in flight stay as they are."""
    with connection.transaction():
        moved = _cancel(connection, delivery_ids)
        if moved:
            record_run(connection, "delivery.cancel", act, {"moved": len(moved), "delivery_ids": moved})
    return moved


def retry_selection(
    connection: psycopg.Connection, selection: Selection, act: Act, progress: Callable[[int], None]
) -> int:
    """All of the selection, page by page, under one run; ``progress`` is told the sum after each commit."""
    return _act_on_selection(
        connection,
        selection,
        act,
        kind="delivery.retry",
        move=lambda ids: _retry(connection, ids, force=False),
        progress=progress,
    )


def cancel_selection(
    connection: psycopg.Connection, selection: Selection, act: Act, progress: Callable[[int], None]
) -> int:
    """All of the selection, page by page, under one run; ``progress`` is told the sum after each commit."""
    return _act_on_selection(
        connection,
        selection,
        act,
        kind="delivery.cancel",
        move=lambda ids: _cancel(connection, ids),
        progress=progress,
    )


def _select(connection: psycopg.Connection, destination_id: str, state: Literal["dead", "pending"]) -> Selection:
    clock = connection.cursor(row_factory=scalar_row).execute("select clock_timestamp()").fetchone()
    rows = (
        connection.cursor(row_factory=scalar_row)
        .execute(query("operator", f"count_{state}"), {"destination_id": destination_id, "until": clock})
        .fetchone()
    )
    if not isinstance(clock, datetime) or not isinstance(rows, int):
        raise RuntimeError("a count and a clock are always there")
    return Selection(destination_id, state, clock, rows)


def _retry(connection: psycopg.Connection, delivery_ids: Sequence[str], *, force: bool) -> list[str]:
    states = ["dead", "succeeded"] if force else ["dead"]
    cursor = connection.cursor(row_factory=scalar_row)
    return cursor.execute(
        query("operator", "retry_deliveries"), {"delivery_ids": list(delivery_ids), "states": states}
    ).fetchall()


def _cancel(connection: psycopg.Connection, delivery_ids: Sequence[str]) -> list[str]:
    cursor = connection.cursor(row_factory=scalar_row)
    return cursor.execute(query("operator", "cancel_deliveries"), {"delivery_ids": list(delivery_ids)}).fetchall()


def _act_on_selection(
    connection: psycopg.Connection,
    selection: Selection,
    act: Act,
    *,
    kind: str,
    move: Callable[[Sequence[str]], list[str]],
    progress: Callable[[int], None],
) -> int:
    with _run(connection, kind, act, selection) as count:
        moved = 0
        while True:
            with connection.transaction():
                delivery_ids = _next_page(connection, selection)
                moved += len(move(delivery_ids))
                count(moved)
            if not delivery_ids:
                return moved
            progress(moved)


def _next_page(connection: psycopg.Connection, selection: Selection) -> list[str]:
    """What was moved has left the state, so each page is the first of the rest."""
    parameters = {"destination_id": selection.destination_id, "until": selection.until, "page_rows": PAGE_ROWS}
    cursor = connection.cursor(row_factory=scalar_row)
    return cursor.execute(query("operator", f"page_of_{selection.state}"), parameters).fetchall()


@contextmanager
def _run(connection: psycopg.Connection, kind: str, act: Act, selection: Selection) -> Iterator[Callable[[int], None]]:
    """A run that is open while the block runs; gives the function that counts, for the transaction that moved.

    A run without ``finished_at`` was killed, and what it counts is what it did.
    """
    run_id: UUID | None = (
        connection.cursor(row_factory=scalar_row)
        .execute(
            query("reconcile", "start_run"),
            {"kind": kind, "woken_by": "operator", "operator": act.operator, "reason": act.reason},
        )
        .fetchone()
    )
    counts = {"destination_id": selection.destination_id, "selected": selection.rows, "moved": 0}

    def count(moved: int) -> None:
        counts["moved"] = moved
        connection.execute(query("reconcile", "count_run"), {"run_id": run_id, "counts": Json(counts)})

    error: str | None = "interrupted"
    try:
        yield count
        error = None
    except psycopg.Error as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        if not connection.broken and not connection.closed:
            connection.execute(
                query("reconcile", "finish_run"), {"run_id": run_id, "counts": Json(counts), "error": error}
            )
