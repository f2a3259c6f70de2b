"""The audit's table: what was read from Kafka, keyed by its place there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg

from pipeline.ledger.queries import query


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One message. ``defect`` says why it could not be understood; then only its place, time and hash are known."""

    topic: str
    partition: int
    log_offset: int
    logged_at: datetime
    delivery_id: str | None = None
    destination_id: str | None = None
    dispatch_seq: int | None = None
    attempt: int | None = None
    result: str | None = None
    body_sha256: bytes | None = None
    defect: str | None = None


def record_messages(connection: psycopg.Connection, records: Sequence[AuditRecord]) -> int:
    """Write them in one statement; returns how many were not recorded before."""
    cursor = connection.execute(
        query("audit", "record_messages"),
        {
            "topics": [r.topic for r in records],
            "partitions": [r.partition for r in records],
            "log_offsets": [r.log_offset for r in records],
            "logged_at": [r.logged_at for r in records],
            "delivery_ids": [r.delivery_id for r in records],
            "destination_ids": [r.destination_id for r in records],
            "dispatch_seqs": [r.dispatch_seq for r in records],
            "attempts": [r.attempt for r in records],
            "results": [r.result for r in records],
            "body_sha256s": [r.body_sha256 for r in records],
            "defects": [r.defect for r in records],
        },
    )
    return cursor.rowcount
