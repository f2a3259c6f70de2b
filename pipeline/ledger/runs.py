"""Runs as records: opened before an act, closed after it, listed and shown.

For acts outside the database, which no transaction can hold together with their run: the run is committed first, with
what was found, and closed with what was left. One that was never closed was killed, and says what it was about to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from pipeline.ledger.operator import Act
from pipeline.ledger.queries import query

END = datetime(9999, 1, 1, tzinfo=UTC), UUID(int=2**128 - 1)
"""The cursor before the newest run."""

RunCursor = tuple[datetime, UUID]


class BusyError(RuntimeError):
    """Someone else does the same kind of act on the same thing at this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    run_id: UUID
    kind: str
    woken_by: str
    operator: str
    reason: str | None
    parameters: dict[str, Any]
    before: Any
    after: Any
    counts: dict[str, Any]
    started_at: datetime
    finished_at: datetime | None
    error: str | None

    @property
    def outcome(self) -> str:
        """done, failed, or open: at work, or killed."""
        if self.finished_at is None:
            return "open"
        return "done" if self.error is None else "failed"


def open_run(
    connection: psycopg.Connection, kind: str, act: Act, *, parameters: Mapping[str, Any], before: Any, after: Any
) -> UUID:
    """Commit the run of an act that is about to begin; `after` is what it intends."""
    with connection.transaction():
        cursor = connection.cursor(row_factory=scalar_row)
        run_id = cursor.execute(
            query("reconcile", "start_run"),
            {"kind": kind, "woken_by": "operator", "operator": act.operator, "reason": act.reason},
        ).fetchone()
        if not isinstance(run_id, UUID):
            raise RuntimeError("start_run always returns the run's id")
        connection.execute(
            query("runs", "detail_run"),
            {"run_id": run_id, "parameters": Jsonb(parameters), "before": Jsonb(before), "after": Jsonb(after)},
        )
    return run_id


def close_run(
    connection: psycopg.Connection, run_id: UUID, *, after: Any, counts: Mapping[str, Any], error: str | None
) -> None:
    """What the act left, and its failure if it failed. `after` None leaves the intent. A closed run stays as it is."""
    details = {"run_id": run_id, "parameters": None, "before": None, "after": None if after is None else Jsonb(after)}
    with connection.transaction():
        connection.execute(query("runs", "detail_run"), details)
        connection.execute(
            query("reconcile", "finish_run"), {"run_id": run_id, "counts": Jsonb(counts), "error": error}
        )


def count_run(connection: psycopg.Connection, run_id: UUID, counts: Mapping[str, Any]) -> None:
    """What an open run has done so far, in the caller's transaction."""
    connection.execute(query("reconcile", "count_run"), {"run_id": run_id, "counts": Jsonb(counts)})


def find_run(connection: psycopg.Connection, run_id: UUID) -> Run | None:
    cursor = connection.cursor(row_factory=class_row(Run))
    return cursor.execute(query("runs", "one_run"), {"run_id": run_id}).fetchone()


def list_runs(
    connection: psycopg.Connection, *, kind: str | None, acts_only: bool, before: RunCursor, limit: int
) -> list[Run]:
    """Newest first, from below the cursor: of one kind, of people, or all."""
    name = "newest_of_kind" if kind is not None else "newest_acts" if acts_only else "newest_runs"
    parameters = {"kind": kind, "before_time": before[0], "before_id": before[1], "limit": limit}
    return connection.cursor(row_factory=class_row(Run)).execute(query("runs", name), parameters).fetchall()


@contextmanager
def alone(connection: psycopg.Connection, what: str, name: str) -> Iterator[None]:
    """No other connection is in the same block with the same words. Raises BusyError at once where one is."""
    parameters = {"what": what, "name": name}
    cursor = connection.cursor(row_factory=scalar_row)
    if not cursor.execute(query("runs", "lock_act"), parameters).fetchone():
        raise BusyError(f"someone else is at work on {what} {name}: wait until that is over")
    try:
        yield
    finally:
        if not connection.closed and not connection.broken:
            connection.execute(query("runs", "unlock_act"), parameters)


@contextmanager
def in_turn(connection: psycopg.Connection, what: str, name: str) -> Iterator[None]:
    """As `alone`, but waits for its turn, as long as the session lets a statement run."""
    parameters = {"what": what, "name": name}
    connection.execute(query("runs", "await_act"), parameters)
    try:
        yield
    finally:
        if not connection.closed and not connection.broken:
            connection.execute(query("runs", "unlock_act"), parameters)
