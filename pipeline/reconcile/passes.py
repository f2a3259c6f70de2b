"""One pass over the ledger: bounded pages, one run.

Whoever wakes the reconciler says nothing about what is due: a pass looks for itself. Two passes at once divide the
work, because a page passes over rows that the other holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import psycopg

from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.reconcile import Moved, count_run, dispatch_page, finish_run, start_run

RUN_KIND = "reconcile"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    page_rows: int
    """Rows in one transaction."""
    pass_rows: int
    """Rows after which the pass ends."""
    window_seconds: float
    """How far ahead a destination is given work, in seconds at its start rate."""


@dataclass(frozen=True, slots=True)
class PassResult:
    run_id: UUID | None
    """None where there was nothing to record."""
    moved: Moved
    is_complete: bool
    """False: the pass ended at its limit, or was stopped; there may be more to do now."""


@dataclass(frozen=True, slots=True)
class RunOpening:
    """Who or what began the pass, as its run row says it."""

    woken_by: str
    operator: str | None
    reason: str | None

    async def start(self, connection: Connection) -> UUID:
        return await start_run(
            connection, kind=RUN_KIND, woken_by=self.woken_by, operator=self.operator, reason=self.reason
        )


async def run_pass(
    pool: Pool,
    limits: PassLimits,
    *,
    woken_by: str,
    operator: str | None = None,
    reason: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> PassResult:
    """Dispatch what is due, lost or expired, page by page, until a page is empty or the limit is reached.

    The run row is written in the transaction of the first page that moves something, so a pass that finds nothing
    leaves no row, unless a person asked for it (``operator`` is given). Its counts grow with each page's commit; a run
    without ``finished_at`` was killed, and what it counts is what it did. ``stop`` is asked between pages.

    Raises psycopg.Error; pages committed before stand, and the run says what failed if the database can be told.
    """
    opening = RunOpening(woken_by, operator, reason)
    run_id: UUID | None = None
    moved = Moved()
    is_complete = False
    try:
        while page_rows := min(limits.page_rows, limits.pass_rows - moved.total):
            async with pool.connection() as connection, connection.transaction():
                page = await dispatch_page(connection, page_rows=page_rows, window_seconds=limits.window_seconds)
                page_run_id = run_id
                if page_run_id is None and (page.total or operator is not None):
                    page_run_id = await opening.start(connection)
                if page_run_id is not None:
                    await count_run(connection, page_run_id, moved + page)
            run_id, moved = page_run_id, moved + page
            if page.total == 0:
                is_complete = True
                break
            if stop():
                break
        if run_id is not None:
            async with pool.connection() as connection:
                await finish_run(connection, run_id, moved, None)
    except psycopg.Error as error:
        if error.sqlstate is not None:  # the server said it, so it is there to be told
            with suppress(psycopg.Error):
                async with pool.connection() as connection:
                    await _record_failure(connection, run_id, moved, error, opening)
        raise
    return PassResult(run_id, moved, is_complete)


async def _record_failure(
    connection: Connection, run_id: UUID | None, moved: Moved, error: psycopg.Error, opening: RunOpening
) -> None:
    async with connection.transaction():
        if run_id is None:
            run_id = await opening.start(connection)
        await finish_run(connection, run_id, moved, f"{type(error).__name__}: {error}")
