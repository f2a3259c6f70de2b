"""The operator's transitions of deliveries: retry and cancel. Each commits with the run that records it.

Every statement carries its condition, so an act that comes too late, or twice, moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.rows import scalar_row
from psycopg.types.json import Json

from pipeline.ledger.operator import Act, record_run
from pipeline.ledger.queries import query
from pipeline.ledger.reports import BEGINNING

PAGE_ROWS = 500
RETRIED_STATES = ("dead", "pending", "enqueued")
CANCELLED_STATES = ("pending", "enqueued")

SelectedState = Literal["dead", "pending", "enqueued"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which deliveries are meant. What waits (pending, enqueued) is selected of one destination."""

    state: SelectedState
    destination_id: str | None
    outcome: str | None = None
    """Of the last attempt."""
    older_than_seconds: float = 0.0
    """Since admission."""

    def __str__(self) -> str:
        words = [f"{self.state} deliveries"]
        if self.destination_id is not None:
            words.append(f"of {self.destination_id}")
        if self.outcome is not None:
            words.append(f"with the outcome {self.outcome}")
        if self.older_than_seconds > 0:
            words.append(f"older than {timedelta(seconds=self.older_than_seconds)}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Selection:
    """All deliveries that fit a filter as of a time, so that the act ends."""

    filter: Filter
    until: datetime
    rows: int


def select(connection: psycopg.Connection, wanted: Filter) -> Selection:
    """Count what an act on it would move now."""
    if wanted.destination_id is None and wanted.state != "dead":
        raise ValueError("what waits is selected of one destination")
    clock = connection.cursor(row_factory=scalar_row).execute("select clock_timestamp()").fetchone()
    if not isinstance(clock, datetime):
        raise RuntimeError("a clock is always there")
    page = query("operator", f"page_of_{wanted.state}")
    rows = (
        connection.cursor(row_factory=scalar_row)
        .execute(
            f"select count(*) from ({page}) p".encode(),  # noqa: S608 - the page is a statement of ours
            {**_parameters(wanted, clock), **_after(BEGINNING.time, BEGINNING.delivery_id), "page_rows": None},
        )
        .fetchone()
    )
    return Selection(wanted, clock, int(rows or 0))


def retry(connection: psycopg.Connection, delivery_ids: Sequence[str], act: Act, *, force: bool) -> list[str]:
    """Hand deliveries to Kafka again at once: dead ones, those that wait, and succeeded ones with ``force``.

    Returns the ids that moved.
    """
    states = [*RETRIED_STATES, "succeeded"] if force else list(RETRIED_STATES)
    return _retry(connection, delivery_ids, states, act, dispatch_seqs=[], force=force)


def retry_as_found(connection: psycopg.Connection, found: Mapping[str, int], state: str, act: Act) -> list[str]:
    """Hand deliveries to Kafka again at once which are in this state still, each with the dispatch under which it was found.

    So whoever found the same at the same time does not do it a second time. Returns the ids that moved.
    """
    force = state == "succeeded"
    return _retry(connection, list(found), [state], act, dispatch_seqs=list(found.values()), force=force)


def _retry(
    connection: psycopg.Connection,
    delivery_ids: Sequence[str],
    states: Sequence[str],
    act: Act,
    *,
    dispatch_seqs: Sequence[int],
    force: bool,
) -> list[str]:
    with connection.transaction():
        moved = _moved(connection, "retry_deliveries", delivery_ids, states, dispatch_seqs=list(dispatch_seqs))
        if moved:
            record_run(connection, "delivery.retry", act, {"moved": len(moved), "delivery_ids": moved, "force": force})
    return moved


def dispatch_again(connection: psycopg.Connection, delivery_id: str, dispatch_seq: int) -> int | None:
    """Hand a delivery to Kafka again whose message lies in quarantine; the refused message stays where it is.

    Returns the number of the new dispatch; None where the delivery has gone on since, by the reconciler or by another
    message, or is not known.
    """
    moved = connection.execute(
        query("operator", "retry_deliveries"),
        {"delivery_ids": [delivery_id], "states": list(RETRIED_STATES), "dispatch_seqs": [dispatch_seq]},
    ).fetchone()
    return None if moved is None else int(moved[1])


def cancel(connection: psycopg.Connection, delivery_ids: Sequence[str], act: Act) -> list[str]:
    """End deliveries that wait or are in transport; returns the ids that moved. Those in flight stay as they are."""
    with connection.transaction():
        moved = _moved(connection, "cancel_deliveries", delivery_ids, CANCELLED_STATES)
        if moved:
            record_run(connection, "delivery.cancel", act, {"moved": len(moved), "delivery_ids": moved})
    return moved


def retry_selection(
    connection: psycopg.Connection, selection: Selection, act: Act, progress: Callable[[int], None]
) -> int:
    """Make all of it due now, page by page, under one run; the reconciler hands it out at its destinations' rates.

    ``progress`` is told the sum after each commit.
    """
    moved = _act_on_selection(
        connection, selection, act, kind="delivery.retry", statement="release_deliveries", progress=progress
    )
    connection.execute(query("operator", "wake_reconciler"))
    return moved


def cancel_selection(
    connection: psycopg.Connection, selection: Selection, act: Act, progress: Callable[[int], None]
) -> int:
    """End all of it, page by page, under one run; ``progress`` is told the sum after each commit."""
    return _act_on_selection(
        connection, selection, act, kind="delivery.cancel", statement="cancel_deliveries", progress=progress
    )


def _moved(
    connection: psycopg.Connection, statement: str, delivery_ids: Sequence[str], states: Sequence[str], **more: object
) -> list[str]:
    cursor = connection.cursor(row_factory=scalar_row)
    return cursor.execute(
        query("operator", statement), {"delivery_ids": list(delivery_ids), "states": list(states), **more}
    ).fetchall()


def _parameters(wanted: Filter, until: datetime) -> dict[str, Any]:
    return {
        "destination_id": wanted.destination_id,
        "outcome": wanted.outcome,
        "created_until": until - timedelta(seconds=wanted.older_than_seconds),
        "until": until,
    }


def _after(time: datetime, delivery_id: str) -> dict[str, Any]:
    return {"after_time": time, "after_id": delivery_id}


def _act_on_selection(
    connection: psycopg.Connection,
    selection: Selection,
    act: Act,
    *,
    kind: str,
    statement: str,
    progress: Callable[[int], None],
) -> int:
    wanted = selection.filter
    place = _after(BEGINNING.time, BEGINNING.delivery_id)
    with _run(connection, kind, act, selection) as count:
        moved = 0
        while True:
            with connection.transaction():
                page = connection.execute(
                    query("operator", f"page_of_{wanted.state}"),
                    {**_parameters(wanted, selection.until), **place, "page_rows": PAGE_ROWS},
                ).fetchall()
                if not page:
                    return moved
                moved += len(_moved(connection, statement, [row[0] for row in page], [wanted.state]))
                count(moved)
            place = _after(page[-1][1], page[-1][0])
            progress(moved)


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
    wanted = selection.filter
    counts: dict[str, Any] = {"destination_id": wanted.destination_id, "selected": selection.rows, "moved": 0}
    if wanted.outcome is not None:
        counts["outcome"] = wanted.outcome
    if wanted.older_than_seconds:
        counts["older_than_seconds"] = wanted.older_than_seconds

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
