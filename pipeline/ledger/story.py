"""One delivery's way as the ledger knows it: admission, dispatches, attempts, and the acts of operators."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from pipeline.ledger.queries import query


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The delivery and its event. ``admitted_in`` and ``admitted_lsn`` are the event's; None in older rows."""

    delivery_id: str
    event_id: str
    destination_id: str
    state: str
    dispatch_seq: int
    attempt: int
    waiting_reason: str | None
    created_at: datetime
    deliver_at: datetime | None
    settled_at: datetime | None
    last_outcome: str | None
    event_type: str
    admitted_by: str
    admitted_at: datetime
    admitted_in: str | None
    admitted_lsn: str | None
    """Where the log stood: the commit lies at or behind it."""
    body_sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """A row of the outbox. ``transaction`` is the lower half of the id of the transaction that wrote it."""

    dispatch_seq: int
    reason: str
    created_at: datetime
    message_id: UUID
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAttempt:
    attempt: int
    dispatch_seq: int
    result: str
    outcome: str
    status: int | None
    ambiguous: bool
    worker_id: str
    key_ids: list[str]
    started_at: datetime
    duration_seconds: float
    body_sha256: bytes
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAct:
    """A run. ``is_named``: it says itself that it was about this delivery; others were about its destination."""

    run_id: UUID
    kind: str
    operator: str
    reason: str | None
    started_at: datetime
    finished_at: datetime | None
    error: str | None
    verdict: str | None
    """Of a replay: what it did with the delivery."""
    replayed_seq: int | None
    is_named: bool
    transaction: str
    """That wrote the run last, as in OutboxEntry."""


def admission_of(connection: psycopg.Connection, delivery_id: str) -> Admission | None:
    cursor = connection.cursor(row_factory=class_row(Admission))
    return cursor.execute(query("story", "admission"), {"delivery_id": delivery_id}).fetchone()


def outbox_of(connection: psycopg.Connection, delivery_id: str, limit: int) -> list[OutboxEntry]:
    """Oldest first; those that retention dropped are absent."""
    cursor = connection.cursor(row_factory=class_row(OutboxEntry))
    return cursor.execute(query("story", "dispatches"), {"delivery_id": delivery_id, "limit": limit}).fetchall()


def logged_attempts_of(connection: psycopg.Connection, delivery_id: str, limit: int) -> list[LoggedAttempt]:
    """Oldest first; those that retention dropped are absent."""
    cursor = connection.cursor(row_factory=class_row(LoggedAttempt))
    return cursor.execute(query("story", "attempts"), {"delivery_id": delivery_id, "limit": limit}).fetchall()


def acts_on(
    connection: psycopg.Connection, delivery_id: str, destination_id: str, since: datetime, limit: int
) -> list[OperatorAct]:
    """What operators did to it, or to its destination, since then; oldest first."""
    cursor = connection.cursor(row_factory=class_row(OperatorAct))
    return cursor.execute(
        query("story", "acts"),
        {"delivery_id": delivery_id, "destination_id": destination_id, "since": since, "limit": limit},
    ).fetchall()
