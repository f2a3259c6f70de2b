"""The reconciler's transitions, the run that records them, and the care of the partitions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Json

from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.queries import query

AUDIT_DAYS_MAX = 31
"""Days of the audit that one call drops."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Deliveries that were handed to Kafka again, by reason."""

    due: int = 0
    lost: int = 0
    lease_expired: int = 0

    @property
    def total(self) -> int:
        return self.due + self.lost + self.lease_expired

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.due + other.due, self.lost + other.lost, self.lease_expired + other.lease_expired)


async def dispatch_page(connection: Connection, *, page_rows: int, window_seconds: float) -> Moved:
    """Move at most ``page_rows`` deliveries, with their outbox rows, in the caller's transaction.

    Rows that another session holds are passed over. A destination gets no more than it can start in
    ``window_seconds``, less what is on its way already.
    """
    cursor = connection.cursor(row_factory=class_row(Moved))
    await cursor.execute(
        query("reconcile", "dispatch_page"), {"page_rows": page_rows, "window_seconds": window_seconds}
    )
    moved = await cursor.fetchone()
    if moved is None:
        raise RuntimeError("dispatch_page always returns one row")
    return moved


async def start_run(
    connection: Connection, *, kind: str, woken_by: str, operator: str | None, reason: str | None
) -> UUID:
    """Open a run. ``operator`` None: the session's user."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute(
        query("reconcile", "start_run"), {"kind": kind, "woken_by": woken_by, "operator": operator, "reason": reason}
    )
    run_id = await cursor.fetchone()
    if not isinstance(run_id, UUID):
        raise RuntimeError("start_run always returns the run's id")
    return run_id


async def count_run(connection: Connection, run_id: UUID, moved: Moved) -> None:
    """What the run has moved so far. In the transaction that moved it, so that a killed run says the truth too."""
    await connection.execute(query("reconcile", "count_run"), {"run_id": run_id, "counts": Json(asdict(moved))})


async def finish_run(connection: Connection, run_id: UUID, moved: Moved, error: str | None) -> None:
    """Close the run; a run that was closed already stays as it is."""
    await connection.execute(
        query("reconcile", "finish_run"), {"run_id": run_id, "counts": Json(asdict(moved)), "error": error}
    )


async def ensure_partitions(pool: Pool, *, days_ahead: int) -> list[str]:
    """Make the daily partitions from today on; returns the names of new ones."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(query("reconcile", "ensure_partitions"), {"days_ahead": days_ahead})
        return await cursor.fetchall()


async def drop_expired_partitions(pool: Pool, *, outbox_days: int, attempt_days: int) -> list[str]:
    """Drop whole partitions that ended longer ago, save those with evidence of an unsettled delivery.

    Returns the names of those dropped.
    """
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(
            query("reconcile", "drop_expired_partitions"), {"outbox_days": outbox_days, "attempt_days": attempt_days}
        )
        return await cursor.fetchall()


async def expire_audit(pool: Pool, *, keep_days: int) -> list[str]:
    """Drop the audit's days that ended longer ago, each with its tombstones in the chains; returns their names."""
    dropped: list[str] = []
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        while len(dropped) < AUDIT_DAYS_MAX:
            async with connection.transaction():
                # All rows of the day are put in order once.
                await cursor.execute("set local statement_timeout = '10min'")
                await cursor.execute(query("audit", "expire"), {"keep_days": keep_days})
                names = await cursor.fetchall()
            if not names:
                break
            dropped += names
    return dropped
