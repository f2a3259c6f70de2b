"""The audit's store: what was read from Kafka, keyed by its place there and linked into a chain for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row, scalar_row
from psycopg.types.json import Jsonb

from pipeline.ledger.queries import query

READ_ROWS = 2_000
"""Rows that a cursor brings at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One message. ``defect`` says why it could not be understood; then only its place, time and hash are known."""

    topic: str
    partition: int
    log_offset: int
    logged_at: datetime
    delivery_id: str | None = None
    destination_id: str | None = None
    event_id: str | None = None
    dispatch_seq: int | None = None
    reason: str | None = None
    """Of a dispatch: why it was handed to Kafka. What follows is of an attempt."""
    attempt: int | None = None
    result: str | None = None
    outcome: str | None = None
    status: int | None = None
    ambiguous: bool | None = None
    worker_id: str | None = None
    key_ids: list[str] | None = None
    started_at: datetime | None = None
    duration_us: int | None = None
    body_sha256: bytes | None = None
    defect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMessage(AuditRecord):
    """A row of the store."""

    chain_seq: int
    recorded_at: datetime
    hash: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """What one call did to the chain of one partition, and where that chain ends now."""

    topic: str
    partition: int
    appended: int
    repeated: int
    """Recorded before, and left as they are."""
    chain_seq: int
    hash: bytes
    is_anchor: bool


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """A place of a chain with its hash: its tip, or an anchor."""

    topic: str
    partition: int
    chain_seq: int
    hash: bytes
    at: datetime


COLUMNS = tuple(field.name for field in fields(RecordedMessage))
_GIVEN = tuple(field.name for field in fields(AuditRecord))


def record_messages(connection: psycopg.Connection, records: Sequence[AuditRecord]) -> list[Appended]:
    """Append those that are not recorded yet, in one statement."""
    entries = Jsonb([_entry(record) for record in records])
    cursor = connection.cursor(row_factory=class_row(Appended))
    return cursor.execute(query("audit", "append"), {"entries": entries}).fetchall()


def ensure_audit_partitions(connection: psycopg.Connection, *, days_back: int, days_ahead: int) -> list[str]:
    """Make the days around today; returns the names of new ones."""
    cursor = connection.cursor(row_factory=scalar_row)
    return cursor.execute(
        query("audit", "ensure_partitions"), {"days_back": days_back, "days_ahead": days_ahead}
    ).fetchall()


def chains(connection: psycopg.Connection) -> list[tuple[str, int]]:
    """Topic and partition of every chain of which any trace is left, in order."""
    return [(row[0], row[1]) for row in connection.execute(query("audit", "chains")).fetchall()]


def tip_of(connection: psycopg.Connection, topic: str, partition: int) -> ChainEnd | None:
    cursor = connection.cursor(row_factory=class_row(ChainEnd))
    return cursor.execute(query("audit", "tip_of"), {"topic": topic, "partition": partition}).fetchone()


def anchors_of(connection: psycopg.Connection, topic: str, partition: int) -> dict[int, bytes]:
    """Hash by place; one for a thousand links."""
    return dict(connection.execute(query("audit", "anchors_of"), {"topic": topic, "partition": partition}).fetchall())


def tombstones_of(connection: psycopg.Connection, topic: str, partition: int) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    return cursor.execute(query("audit", "tombstones_of"), {"topic": topic, "partition": partition}).fetchall()


def newest_anchors(connection: psycopg.Connection) -> list[ChainEnd]:
    """The tip of every chain, to be kept elsewhere."""
    return connection.cursor(row_factory=class_row(ChainEnd)).execute(query("audit", "tips")).fetchall()


@contextmanager
def one_moment(connection: psycopg.Connection) -> Iterator[None]:
    """All that is read in the block is as of one moment, however long it takes."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        connection.execute("set local statement_timeout = 0")
        yield


def links_of(connection: psycopg.Connection, topic: str, partition: int) -> Iterator[RecordedMessage]:
    """The rows of a chain in its order, through a cursor; within a transaction."""
    yield from _streamed(connection, "links_of", {"topic": topic, "partition": partition})


def records_of_delivery(connection: psycopg.Connection, delivery_id: str, limit: int) -> list[RecordedMessage]:
    """Oldest first."""
    cursor = connection.cursor(row_factory=class_row(RecordedMessage))
    return cursor.execute(
        query("audit", "records_of_delivery"), {"delivery_id": delivery_id, "limit": limit}
    ).fetchall()


def matching_records(
    connection: psycopg.Connection,
    *,
    since: datetime | None,
    until: datetime | None,
    topic: str | None,
    destination_id: str | None,
    delivery_id: str | None,
    result: str | None,
) -> Iterator[RecordedMessage]:
    """Rows by their time in the log, through a cursor; within a transaction. None: any."""
    yield from _streamed(
        connection,
        "matching_records",
        {
            "since": since,
            "until": until,
            "topic": topic,
            "destination_id": destination_id,
            "delivery_id": delivery_id,
            "result": result,
        },
    )


def _streamed(connection: psycopg.Connection, name: str, parameters: dict[str, object]) -> Iterator[RecordedMessage]:
    with connection.cursor("outrider_audit", row_factory=class_row(RecordedMessage)) as cursor:
        cursor.itersize = READ_ROWS
        cursor.execute(query("audit", name), parameters)
        yield from cursor


def _entry(record: AuditRecord) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in _GIVEN:
        value = getattr(record, name)
        if isinstance(value, datetime):
            value = value.isoformat()
        elif isinstance(value, bytes):
            value = "\\x" + value.hex()
        if value is not None:
            values[name] = value
    return values
