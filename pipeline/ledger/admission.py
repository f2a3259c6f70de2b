"""What the HTTP API asks of the ledger: to admit events, many in one statement, and to show where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from psycopg.rows import class_row, kwargs_row

from pipeline.core.lifecycle import State
from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.queries import query
from pipeline.ledger.reports import Cursor, DeliveryEntry

END = Cursor(datetime(9999, 1, 1, tzinfo=UTC), "")
"""Before this comes everything, in a list that goes from the newest to the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventToAdmit:
    event_id: str
    event_type: str
    payload: bytes
    content_type: str
    headers: dict[str, str]
    """Go out with each request, and are not part of the identity."""
    destinations: tuple[str, ...] | None
    """None: those subscribed to the type."""
    deliver_at: datetime | None


@dataclass(frozen=True, slots=True)
class AdmittedTo:
    delivery_id: str
    destination_id: str
    created: bool
    """False: it was there before, and nothing changed."""
    state: str


@dataclass(frozen=True, slots=True)
class Admitted:
    deliveries: tuple[AdmittedTo, ...]
    """By destination; empty where nobody is subscribed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of this event changed. ``sqlstate`` is one that ``outrider.admit`` documents."""

    sqlstate: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSummary:
    """An event without its payload."""

    event_id: str
    event_type: str
    content_type: str
    payload_sha256: str
    """Hexadecimal."""
    headers: dict[str, str]
    admitted_by: str
    admitted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """An attempt that ended, without the receiver's answer."""

    attempt: int
    dispatch_seq: int
    result: str
    outcome: str
    status: int | None
    ambiguous: bool
    error: str | None
    retry_after_seconds: float | None
    next_attempt_at: datetime | None
    started_at: datetime
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSummary:
    """A receiver without its secrets and networks."""

    destination_id: str
    url: str
    enabled: bool
    disabled_reason: str | None
    start_rate_per_second: float
    burst: int
    concurrency: int
    timeout_seconds: float
    retry_first_delay_seconds: float
    retry_factor: float
    retry_max_delay_seconds: float
    retry_max_attempts: int
    retry_max_age_seconds: float
    created_at: datetime
    updated_at: datetime
    subscriptions: list[str]


async def admit_many(connection: Connection, events: Sequence[EventToAdmit]) -> list[Admitted | Refused]:
    """Admit them in one statement; the answers come in the order of the events, and one refusal stops no other.

    On a connection in autocommit they are durable on return; otherwise they belong to the caller's transaction.
    Raises psycopg.errors.LockNotAvailable while another transaction holds one of the events, and psycopg.Error
    otherwise; then none was admitted, or the commit's answer was lost. The call may be repeated as it is.
    """
    documents = [
        {
            "event_id": event.event_id,
            "event_type": event.event_type,
            "content_type": event.content_type,
            "headers": event.headers,
            "destinations": event.destinations,
            "deliver_at": event.deliver_at,
        }
        for event in events
    ]
    cursor = await connection.execute(
        query("admission", "admit_many"),
        {"events": msgspec.json.encode(documents).decode(), "payloads": [event.payload for event in events]},
    )
    deliveries: list[list[AdmittedTo]] = [[] for _ in events]
    refused: dict[int, Refused] = {}
    answered = set()
    for place, delivery_id, destination_id, created, state, refusal, message, hint in await cursor.fetchall():
        answered.add(place - 1)
        if refusal is not None:
            refused[place - 1] = Refused(refusal, message, hint or None)
        elif delivery_id is not None:
            deliveries[place - 1].append(AdmittedTo(delivery_id, destination_id, created, state))
    if len(answered) != len(events):
        raise RuntimeError(f"admit_many answered {len(answered)} of {len(events)} events")
    return [refused.get(place) or Admitted(tuple(made)) for place, made in enumerate(deliveries)]


async def find_event(pool: Pool, event_id: str) -> EventSummary | None:
    events = await _events(pool, "event", event_id=event_id)
    return events[0] if events else None


async def list_events(pool: Pool, *, before: Cursor = END, limit: int) -> list[EventSummary]:
    """Newest first. The cursor's time and id are those of the event that the page before ended with."""
    return await _events(pool, "events", before_time=before.time, before_id=before.delivery_id, limit=limit)


async def find_delivery(pool: Pool, delivery_id: str) -> DeliveryEntry | None:
    deliveries = await _deliveries(pool, query("reports", "one"), delivery_id=delivery_id)
    return deliveries[0] if deliveries else None


async def list_deliveries_of_event(
    pool: Pool, event_id: str, *, after_destination_id: str = "", limit: int
) -> list[DeliveryEntry]:
    """By destination."""
    part = query("admission", "deliveries_of_event")
    return await _deliveries(pool, part, event_id=event_id, after_id=after_destination_id, limit=limit)


async def list_deliveries(
    pool: Pool, listing: str, *, destination_id: str | None, states: Sequence[State], after: Cursor, limit: int
) -> list[DeliveryEntry]:
    """``listing`` names the part of reports.sql that bounds and orders the list."""
    return await _deliveries(
        pool,
        query("reports", listing),
        destination_id=destination_id,
        states=list(states),
        after_time=after.time,
        after_id=after.delivery_id,
        limit=limit,
    )


async def list_attempts(pool: Pool, delivery_id: str, limit: int) -> list[AttemptSummary]:
    """Newest first; those that retention dropped are absent."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=class_row(AttemptSummary))
        await cursor.execute(query("admission", "attempts"), {"delivery_id": delivery_id, "limit": limit})
        return await cursor.fetchall()


async def list_destinations(pool: Pool, *, after_id: str = "", limit: int) -> list[DestinationSummary]:
    """By id."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=class_row(DestinationSummary))
        await cursor.execute(query("admission", "destinations"), {"after_id": after_id, "limit": limit})
        return await cursor.fetchall()


async def find_destination(pool: Pool, destination_id: str) -> DestinationSummary | None:
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=class_row(DestinationSummary))
        await cursor.execute(query("admission", "destination"), {"destination_id": destination_id})
        return await cursor.fetchone()


async def _events(pool: Pool, part: str, **parameters: Any) -> list[EventSummary]:
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=class_row(EventSummary))
        await cursor.execute(query("admission", "event_columns") + "\n" + query("admission", part), parameters)
        return await cursor.fetchall()


async def _deliveries(pool: Pool, part: str, **parameters: Any) -> list[DeliveryEntry]:
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=kwargs_row(_entry))
        await cursor.execute(f"{query('reports', 'delivery_columns')}\n{part}".encode(), parameters)
        return await cursor.fetchall()


def _entry(*, state: str, **columns: Any) -> DeliveryEntry:
    return DeliveryEntry(state=State(state), **columns)
