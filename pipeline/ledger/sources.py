"""What the ledger keeps about sources for the reconcilers: clocks, wake-ups, modes, refusals, runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.queries import query

PASS = "source.pass"  # noqa: S105 - the kind of a run
SHADOW = "source.shadow"


class Mode(StrEnum):
    """What a shard's rows are to the reconciler."""

    OFF = "off"
    SHADOW = "shadow"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Standing:
    """What may make a pass begin now."""

    source_id: str
    is_on: bool
    """Enabled, and some shard of it live or in shadow mode."""
    interval_at: datetime | None
    cron_at: datetime
    now: datetime
    """By the database's clock."""
    is_woken: bool


@dataclass(frozen=True, slots=True)
class Modes:
    enabled: bool
    live: list[int]
    shadow: list[int]


@dataclass(frozen=True, slots=True)
class TakenWakeup:
    run_id: UUID
    woken_by: str
    operator: str
    counts: dict[str, Any]
    """Not empty where a pass under this run was killed."""


async def register(pool: Pool, source_id: str, *, description: str, shard_count: int, can_shadow: bool) -> None:
    """Make the source known, as its file says. What operators set stays."""
    parameters = {
        "source_id": source_id,
        "description": description,
        "shard_count": shard_count,
        "can_shadow": can_shadow,
    }
    async with pool.connection() as connection:
        await connection.execute(query("sources", "register"), parameters)


async def may_pass(pool: Pool) -> bool:
    """Whether the login has a reconciler's rights, asked before a run is opened that it could not end."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(query("sources", "may_pass"))
        return bool(await cursor.fetchone())


async def standings(pool: Pool, source_ids: Sequence[str]) -> dict[str, Standing]:
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=class_row(Standing))
        await cursor.execute(query("sources", "standing"), {"source_ids": list(source_ids)})
        return {standing.source_id: standing for standing in await cursor.fetchall()}


async def take_interval(pool: Pool, source_id: str, since: datetime | None) -> bool:
    """False where another reconciler has taken it."""
    return await _takes(pool, "take_interval", source_id, since)


async def take_cron(pool: Pool, source_id: str, since: datetime) -> bool:
    """Make the tick a wake-up that any reconciler takes; False where another has done it."""
    return await _takes(pool, "take_cron", source_id, since)


async def wake(pool: Pool, source_id: str, *, woken_by: str, operator: str | None) -> UUID | None:
    """Ask for a pass; the run of the pass that will begin. None: there is no such source."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(
            query("sources", "wake"), {"source_id": source_id, "woken_by": woken_by, "operator": operator}
        )
        run_id = await cursor.fetchone()
    return run_id if isinstance(run_id, UUID) else None


async def take_wakeup(pool: Pool, source_id: str, *, lease_seconds: float) -> TakenWakeup | None:
    """The oldest that waits, or whose pass did not end within its lease."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=class_row(TakenWakeup))
        await cursor.execute(query("sources", "take_wakeup"), {"source_id": source_id, "lease_seconds": lease_seconds})
        return await cursor.fetchone()


async def current_modes(connection: Connection, source_id: str, *, shard_count: int) -> Modes:
    """The modes, which stay as they are until the caller's transaction ends. Nothing is live in an unknown source."""
    await connection.execute(query("sources", "share_switch"), {"source_id": source_id})
    cursor = connection.cursor(row_factory=class_row(Modes))
    await cursor.execute(query("sources", "modes"), {"source_id": source_id, "shard_count": shard_count})
    return await cursor.fetchone() or Modes(enabled=False, live=[], shadow=[])


async def waiting_refusals(connection: Connection, source_id: str, *, limit: int) -> list[str]:
    """Ids of events whose rows are not to be tried now."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(query("sources", "waiting_refusals"), {"source_id": source_id, "limit": limit})
    return await cursor.fetchall()


async def record_refusals(connection: Connection, source_id: str, reasons: Mapping[str, str]) -> None:
    """``reasons`` by event id."""
    parameters = {"source_id": source_id, "event_ids": list(reasons), "reasons": list(reasons.values())}
    await connection.execute(query("sources", "record_refusals"), parameters)


async def forget_refusals(connection: Connection, source_id: str, event_ids: Sequence[str]) -> None:
    await connection.execute(
        query("sources", "forget_refusals"), {"source_id": source_id, "event_ids": list(event_ids)}
    )


async def forget_old_refusals(connection: Connection, source_id: str) -> None:
    await connection.execute(query("sources", "forget_old_refusals"), {"source_id": source_id})


async def start_source_run(
    connection: Connection,
    *,
    kind: str,
    woken_by: str,
    operator: str | None,
    reason: str | None,
    parameters: Mapping[str, Any],
) -> UUID:
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(
        query("sources", "start_run"),
        {
            "kind": kind,
            "woken_by": woken_by,
            "operator": operator,
            "reason": reason,
            "parameters": Jsonb(dict(parameters)),
        },
    )
    run_id = await cursor.fetchone()
    if not isinstance(run_id, UUID):
        raise RuntimeError("start_run always returns the run's id")
    return run_id


async def describe_source_run(connection: Connection, run_id: UUID, parameters: Mapping[str, Any]) -> None:
    await connection.execute(
        query("sources", "describe_run"), {"run_id": run_id, "parameters": Jsonb(dict(parameters))}
    )


async def count_source_run(connection: Connection, run_id: UUID, counts: Mapping[str, Any]) -> None:
    """In the transaction that did it, so that a killed run says the truth too."""
    await connection.execute(query("reconcile", "count_run"), {"run_id": run_id, "counts": Jsonb(dict(counts))})


async def finish_source_run(connection: Connection, run_id: UUID, counts: Mapping[str, Any], error: str | None) -> None:
    """Close the run, and the wake-up that it was for."""
    async with connection.transaction():
        await connection.execute(
            query("reconcile", "finish_run"), {"run_id": run_id, "counts": Jsonb(dict(counts)), "error": error}
        )
        await connection.execute(query("sources", "end_wakeup"), {"run_id": run_id})


async def forget_empty_passes(pool: Pool, *, hours: int) -> int:
    """Delete the runs of clocks' passes that found nothing so long ago; how many."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(query("sources", "forget_empty_passes"), {"hours": hours})
        return int(await cursor.fetchone() or 0)


async def _takes(pool: Pool, name: str, source_id: str, since: datetime | None) -> bool:
    async with pool.connection() as connection:
        cursor = await connection.execute(query("sources", name), {"source_id": source_id, "since": since})
        return await cursor.fetchone() is not None
