"""Removes payloads whose retention is over, beside the passes: sweeps of bounded pages, each sweep that removes one is a run."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import structlog

from pipeline.ledger.payloads import FIRST, Place, count_removed, finish_sweep, old_payloads, remove_payloads
from pipeline.ledger.pool import Pool
from pipeline.ledger.reconcile import start_run
from pipeline.reconcile.metrics import PAYLOADS_REMOVED

RUN_KIND = "payload.retention"
PAGE_ROWS = 500
PAGE_SPACING_SECONDS = 0.1
"""Between two pages: some thousands of events a second, and the passes have the database for most of the time."""
SWEEP_SECONDS = 3_600.0
RETRY_SECONDS = 60.0

_log = structlog.get_logger(__name__)


async def keep_payload_retention(pool: Pool, *, keep_days: int) -> None:
    """Sweep every hour until cancelled. A database that fails is tried again."""
    while True:
        pause_seconds = SWEEP_SECONDS
        try:
            removed = await sweep_payloads(pool, keep_days=keep_days, spacing_seconds=PAGE_SPACING_SECONDS)
            if removed:
                _log.info("payloads removed", events=removed, keep_days=keep_days)
        except psycopg.Error as error:
            # Passes matter more: what stays is removed later.
            _log.error("payloads not removed, trying again", error=" ".join(str(error).split()))
            pause_seconds = RETRY_SECONDS
        await asyncio.sleep(pause_seconds)


async def sweep_payloads(
    pool: Pool, *, keep_days: int, page_rows: int = PAGE_ROWS, spacing_seconds: float = 0.0
) -> int:
    """Look once at every event that is old enough, page by page; how many lost their payload.

    Sweeps at once divide the work, because a page passes over rows that another session holds. Raises psycopg.Error; pages
    committed before stand, and the run, left open, counts them.
    """
    run_id: UUID | None = None
    removed, after = 0, FIRST
    while True:
        run_id, in_page, places = await _page(pool, run_id, removed, keep_days=keep_days, after=after, limit=page_rows)
        removed += in_page
        PAYLOADS_REMOVED.inc(in_page)
        if len(places) < page_rows:
            break
        after = places[-1]
        await asyncio.sleep(spacing_seconds)
    if run_id is not None:
        async with pool.connection() as connection:
            await finish_sweep(connection, run_id, removed)
    return removed


async def _page(
    pool: Pool, run_id: UUID | None, before: int, *, keep_days: int, after: Place, limit: int
) -> tuple[UUID | None, int, list[Place]]:
    """The run, which the first page opens that removes something; how many; and what was looked at."""
    async with pool.connection() as connection, connection.transaction():
        places = await old_payloads(connection, keep_days=keep_days, after=after, limit=limit)
        removed = 0
        if places:
            removed = await remove_payloads(connection, [place.event_id for place in places], keep_days=keep_days)
        if removed:
            if run_id is None:
                run_id = await start_run(connection, kind=RUN_KIND, woken_by="interval", operator=None, reason=None)
            await count_removed(connection, run_id, before + removed)
    return run_id, removed, places
