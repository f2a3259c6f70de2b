"""What shadow mode has seen: kept by looks, compared for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from pipeline.ledger.pool import Connection
from pipeline.ledger.queries import query

DIFFERENCES = ("candidate_only", "live_only", "due_only", "claim_only", "differs")
"""Classes that should be empty before a shard is moved."""


@dataclass(frozen=True, slots=True)
class Beginning:
    shadow_since: datetime
    looked_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One row in one look."""

    event_id: str
    due_at: datetime | None
    event_type: str | None = None
    payload_sha256: bytes | None = None
    by_claim: bool = False
    by_query: bool = False


@dataclass(frozen=True, slots=True)
class AdmittedEvent:
    event_id: str
    event_type: str
    admitted_at: datetime
    is_known: bool


@dataclass(frozen=True, slots=True)
class ShadowClass:
    class_: str
    rows: int
    candidate_lags_seconds: list[float | None] | None
    """Median, 99th percentile, greatest."""
    live_lags_seconds: list[float | None] | None


@dataclass(frozen=True, slots=True)
class Difference:
    class_: str
    event_id: str
    due_at: datetime | None
    candidate_at: datetime | None
    direct_at: datetime | None
    live_at: datetime | None
    candidate_lag_seconds: float | None
    """From when it was due until the new path saw it."""
    live_lag_seconds: float | None
    """From when it was due until it was admitted; until now where it was not."""


@dataclass(frozen=True, slots=True)
class Looks:
    looks: int
    complete: int
    failed: int
    last_at: datetime | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class ShadowReport:
    looks: Looks
    classes: dict[str, ShadowClass]
    differences: list[Difference] = field(default_factory=list)

    @property
    def difference_rows(self) -> int:
        return sum(found.rows for name, found in self.classes.items() if name in DIFFERENCES)


async def begin_look(connection: Connection, source_id: str) -> Beginning:
    cursor = connection.cursor(row_factory=class_row(Beginning))
    await cursor.execute(query("source_shadow", "begin"), {"source_id": source_id})
    found = await cursor.fetchone()
    if found is None:
        raise RuntimeError("begin always gives one row")
    return found


async def record_seen(connection: Connection, source_id: str, looked_from: datetime, rows: Sequence[Seen]) -> None:
    """Each event at most once, of a look that began at ``looked_from``. Its claims are rolled back by now."""
    columns = {
        "event_ids": [row.event_id for row in rows],
        "due_ats": [row.due_at for row in rows],
        "event_types": [row.event_type for row in rows],
        "payload_sha256s": [row.payload_sha256 for row in rows],
        "by_claim": [row.by_claim for row in rows],
        "by_query": [row.by_query for row in rows],
    }
    await connection.execute(
        query("source_shadow", "saw"), {"source_id": source_id, "looked_from": looked_from, **columns}
    )


async def mark_live(connection: Connection, source_id: str) -> int:
    """Rows that were seen and are admitted by now."""
    cursor = await connection.execute(query("source_shadow", "mark_live"), {"source_id": source_id})
    return cursor.rowcount


async def admitted_since(
    connection: Connection,
    source_id: str,
    *,
    after: tuple[datetime, str],
    event_types: Sequence[str],
    limit: int,
) -> list[AdmittedEvent]:
    """In the order of admission."""
    cursor = connection.cursor(row_factory=class_row(AdmittedEvent))
    parameters = {
        "source_id": source_id,
        "after_time": after[0],
        "after_id": after[1],
        "event_types": list(event_types),
        "limit": limit,
    }
    await cursor.execute(query("source_shadow", "admitted"), parameters)
    return await cursor.fetchall()


async def record_live(
    connection: Connection, source_id: str, admitted: Sequence[AdmittedEvent], due_ats: Mapping[str, datetime]
) -> None:
    """Events of the source's shards that no look had seen before they were admitted. ``due_ats`` has those that count."""
    rows = [event for event in admitted if event.event_id in due_ats]
    columns = {
        "event_ids": [event.event_id for event in rows],
        "due_ats": [due_ats[event.event_id] for event in rows],
        "admitted_ats": [event.admitted_at for event in rows],
    }
    await connection.execute(query("source_shadow", "saw_live"), {"source_id": source_id, **columns})


async def forget_seen(connection: Connection, source_id: str, *, days: int) -> None:
    await connection.execute(query("source_shadow", "forget"), {"source_id": source_id, "days": days})


def shadow_report(connection: psycopg.Connection, source_id: str, *, grace_seconds: float, limit: int) -> ShadowReport:
    """How both paths compare since the shadow began; at most ``limit`` differences are listed, all are counted.

    What the candidate saw within ``grace_seconds`` and nobody has admitted yet counts as waiting.
    """
    parameters: dict[str, Any] = {"source_id": source_id, "grace_seconds": grace_seconds, "limit": limit}
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        looks = connection.cursor(row_factory=class_row(Looks)).execute(query("source_shadow", "looks"), parameters)
        found_looks = looks.fetchone()
        counts = connection.execute(_statement("counts"), parameters).fetchall()
        differences = connection.execute(_statement("differences"), parameters).fetchall()
    if found_looks is None:
        raise RuntimeError("looks always gives one row")
    classes = [ShadowClass(*row) for row in counts]
    return ShadowReport(
        found_looks, {found.class_: found for found in classes}, [Difference(*row) for row in differences]
    )


def _statement(part: str) -> bytes:
    return f"{query('source_shadow', 'classified')}\n{query('source_shadow', part)}".encode()
