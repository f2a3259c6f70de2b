"""What the ledger says about itself, for people, metrics and scripts. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row, dict_row, kwargs_row, scalar_row

from pipeline.core.lifecycle import State
from pipeline.ledger.pool import Pool
from pipeline.ledger.queries import query

EXACT_ROWS = 1_000_000

ALL_STATES = tuple(State)
WAITING_STATES = tuple(state for state in State if not state.is_terminal)


def destination_exists(connection: psycopg.Connection, destination_id: str) -> bool:
    row = connection.execute(query("reports", "destination_exists"), {"destination_id": destination_id}).fetchone()
    return row == (True,)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a list: the entry that the page before ended with. As text ``<ISO 8601>/<delivery_id>``."""

    time: datetime
    delivery_id: str

    def __str__(self) -> str:
        return f"{self.time.astimezone(UTC).isoformat()}/{self.delivery_id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises ValueError."""
        time, _, delivery_id = text.partition("/")
        parsed = datetime.fromisoformat(time)
        if parsed.tzinfo is None or not delivery_id:
            raise ValueError("a cursor is a time with its offset, a slash and a delivery's id")
        return cls(parsed, delivery_id)


BEGINNING = Cursor(datetime(1, 1, 1, tzinfo=UTC), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryEntry:
    delivery_id: str
    event_id: str
    event_type: str
    destination_id: str
    destination_enabled: bool
    destination_paused: bool
    state: State
    attempt: int
    dispatch_seq: int
    dispatches_lost: int
    deliver_at: datetime | None
    next_attempt_at: datetime | None
    lost_after: datetime | None
    lease_until: datetime | None
    lease_owner: str | None
    waiting_reason: str | None
    last_outcome: str | None
    last_status: int | None
    last_error: str | None
    created_at: datetime
    settled_at: datetime | None

    @property
    def waits_for(self) -> str | None:
        """Why it is not terminal yet; None where it is."""
        match self.state:
            case State.LEASED:
                return f"attempt {self.attempt} in flight at {self.lease_owner}"
            case State.ENQUEUED if self.dispatches_lost:
                return f"in transport, {self.dispatches_lost} dispatches lost before"
            case State.ENQUEUED:
                return "in transport"
            case State.PENDING if self.destination_paused or not self.destination_enabled:
                return "destination_paused" if self.destination_enabled else "destination_disabled"
            case State.PENDING:
                return self.waiting_reason or "due"
            case _:
                return None

    @property
    def looked_at_next(self) -> datetime | None:
        """The time from which the reconciler takes it up.

        None: it is terminal, or it waits for its destination to be enabled or resumed.
        """
        if (self.destination_paused or not self.destination_enabled) and self.state is not State.LEASED:
            return None
        return self.next_attempt_at or self.lost_after or self.lease_until


@dataclass(frozen=True, slots=True)
class DispatchEntry:
    message_id: UUID
    dispatch_seq: int
    reason: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEntry:
    attempt: int
    dispatch_seq: int
    worker_id: str
    result: str
    outcome: str
    status: int | None
    ambiguous: bool
    error: str | None
    response_headers: dict[str, str] | None
    response_excerpt: bytes | None
    retry_after_seconds: float | None
    next_attempt_at: datetime | None
    key_ids: list[str]
    started_at: datetime
    duration_seconds: float
    dns_seconds: float | None
    connect_seconds: float | None
    tls_seconds: float | None
    first_byte_seconds: float | None
    """To the end of the answer's header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    event_id: str
    event_type: str
    content_type: str
    payload_bytes: int | None
    """None: retention removed it, at ``payload_removed_at``."""
    payload_removed_at: datetime | None
    payload_sha256: str
    """Hexadecimal."""
    headers: dict[str, str]
    admitted_by: str
    admitted_at: datetime


@dataclass(frozen=True, slots=True)
class StateCounts:
    pending: int
    enqueued: int
    leased: int
    succeeded: int
    dead: int


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    by_state: StateCounts
    is_estimate: bool
    """Whether ``succeeded`` comes from the table's statistics, because counting would read too much."""


def list_waiting(
    connection: psycopg.Connection,
    *,
    destination_id: str | None,
    states: Sequence[State] = WAITING_STATES,
    after: Cursor = BEGINNING,
    limit: int,
) -> list[DeliveryEntry]:
    """Deliveries that are not terminal, oldest first by admission."""
    part = query("reports", "waiting" if destination_id is None else "waiting_of_destination")
    return _page(connection, part, after, limit, destination_id=destination_id, states=list(states))


def list_dead(
    connection: psycopg.Connection, *, destination_id: str | None, after: Cursor = BEGINNING, limit: int
) -> list[DeliveryEntry]:
    """Dead deliveries, oldest death first."""
    part = query("reports", "dead" if destination_id is None else "dead_of_destination")
    return _page(connection, part, after, limit, destination_id=destination_id)


def list_of_destination(
    connection: psycopg.Connection,
    destination_id: str,
    *,
    states: Sequence[State] = ALL_STATES,
    after: Cursor = BEGINNING,
    limit: int,
) -> list[DeliveryEntry]:
    """Deliveries of one destination, oldest first by admission."""
    part = query("reports", "all_of_destination")
    return _page(connection, part, after, limit, destination_id=destination_id, states=list(states))


def find_delivery(connection: psycopg.Connection, delivery_id: str) -> DeliveryEntry | None:
    cursor = connection.cursor(row_factory=kwargs_row(_entry))
    statement = query("reports", "delivery_columns") + "\n" + query("reports", "one")
    return cursor.execute(statement, {"delivery_id": delivery_id}).fetchone()


def event_of(connection: psycopg.Connection, event_id: str) -> EventEntry | None:
    cursor = connection.cursor(row_factory=class_row(EventEntry))
    return cursor.execute(query("reports", "event_of"), {"event_id": event_id}).fetchone()


def dispatches_of(connection: psycopg.Connection, delivery_id: str, limit: int) -> list[DispatchEntry]:
    """Newest first; those that retention dropped are absent."""
    cursor = connection.cursor(row_factory=class_row(DispatchEntry))
    return cursor.execute(query("reports", "dispatches_of"), {"delivery_id": delivery_id, "limit": limit}).fetchall()


def attempts_of(connection: psycopg.Connection, delivery_id: str, limit: int) -> list[AttemptEntry]:
    """Newest first; those that retention dropped are absent."""
    cursor = connection.cursor(row_factory=class_row(AttemptEntry))
    return cursor.execute(query("reports", "attempts_of"), {"delivery_id": delivery_id, "limit": limit}).fetchall()


def last_answers(connection: psycopg.Connection, delivery_ids: Sequence[str]) -> dict[str, AttemptEntry]:
    """By delivery, the last attempt that got a status; those without one are absent."""
    cursor = connection.cursor(row_factory=dict_row)
    rows = cursor.execute(query("reports", "last_answers"), {"delivery_ids": list(delivery_ids)}).fetchall()
    return {row.pop("delivery_id"): AttemptEntry(**row) for row in rows}


async def oldest_due_seconds(pool: Pool) -> float:
    """Age of the oldest due delivery to an enabled destination, by the database's clock; 0 where none is due."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(query("reports", "oldest_due_seconds"))
        return float(await cursor.fetchone() or 0.0)


async def waiting_by_reason(pool: Pool, *, rows_max: int) -> dict[str, int]:
    """Deliveries that are not terminal, by what they wait for; at most ``rows_max`` of each state are counted."""
    async with pool.connection() as connection:
        cursor = await connection.execute(query("reports", "waiting_by_reason"), {"rows_max": rows_max})
        return dict(await cursor.fetchall())


async def counts_by_state(pool: Pool) -> LedgerCounts:
    """Exact but for ``succeeded`` in a ledger of more than EXACT_ROWS rows."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(query("reports", "counts_by_state"), {"exact_rows": EXACT_ROWS})
        row = await cursor.fetchone()
    if row is None:
        raise RuntimeError("counts_by_state always returns one row")
    is_estimate = row.pop("is_estimate")
    return LedgerCounts(StateCounts(**row), is_estimate)


def _page(
    connection: psycopg.Connection, part: str, after: Cursor, limit: int, **parameters: Any
) -> list[DeliveryEntry]:
    cursor = connection.cursor(row_factory=kwargs_row(_entry))
    statement = f"{query('reports', 'delivery_columns')}\n{part}"
    place = {"after_time": after.time, "after_id": after.delivery_id, "limit": limit}
    return cursor.execute(statement.encode(), {**parameters, **place}).fetchall()


def _entry(*, state: str, **columns: Any) -> DeliveryEntry:
    return DeliveryEntry(state=State(state), **columns)
