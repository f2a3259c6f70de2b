"""Payloads that are not needed any more: found page by page, and removed where every delivery is long over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from psycopg.rows import scalar_row, tuple_row
from psycopg.types.json import Json

from pipeline.ledger.pool import Connection
from pipeline.ledger.queries import query


@dataclass(frozen=True, slots=True)
class Place:
    """Of an event in the order of admission."""

    admitted_at: datetime
    event_id: str


FIRST = Place(datetime.min.replace(tzinfo=UTC), "")


async def old_payloads(connection: Connection, *, keep_days: int, after: Place, limit: int) -> list[Place]:
    """Events behind ``after`` that were admitted more than so many days ago and have their payload, the oldest first."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        query("payloads", "page"),
        {"keep_days": keep_days, "after_time": after.admitted_at, "after_id": after.event_id, "page_rows": limit},
    )
    return [Place(admitted_at, event_id) for event_id, admitted_at in await cursor.fetchall()]


async def remove_payloads(connection: Connection, event_ids: Sequence[str], *, keep_days: int) -> int:
    """Remove those whose deliveries have all been terminal for so many days; how many. In the caller's transaction."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(query("payloads", "hold"), {"event_ids": list(event_ids)})
    held = await cursor.fetchall()
    if not held:
        return 0
    await cursor.execute(query("payloads", "remove"), {"event_ids": held, "keep_days": keep_days})
    return cursor.rowcount


async def count_removed(connection: Connection, run_id: UUID, removed: int) -> None:
    """In the transaction that removed them, so that a killed run says the truth too."""
    await connection.execute(query("reconcile", "count_run"), {"run_id": run_id, "counts": Json({"removed": removed})})


async def finish_sweep(connection: Connection, run_id: UUID, removed: int) -> None:
    parameters = {"run_id": run_id, "counts": Json({"removed": removed}), "error": None}
    await connection.execute(query("reconcile", "finish_run"), parameters)
