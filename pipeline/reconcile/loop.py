"""The reconciler as a component: passes on a timer and on NOTIFY, partitions every hour, until it is told to stop."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import psycopg
import structlog

from pipeline.ledger.pool import Pool
from pipeline.ledger.reports import oldest_due_seconds, waiting_by_reason
from pipeline.reconcile.backoff import backoff_seconds
from pipeline.reconcile.housekeeping import INTERVAL_SECONDS, RETRY_SECONDS, keep_partitions
from pipeline.reconcile.metrics import MOVED, OLDEST_DUE_SECONDS, PASS_SECONDS, PASSES, WAITING
from pipeline.reconcile.passes import PassLimits, PassResult, run_pass
from pipeline.reconcile.payload_retention import keep_payload_retention
from pipeline.reconcile.wakeups import WakeUps, listen
from pipeline.settings import Settings

NOTIFY_SPACING_SECONDS = 0.02
"""Shortest time from a pass that left nothing undone to the next: a storm of NOTIFYs is not a storm of passes."""

# Counting reads rows, so it is done seldom and up to a bound.
COUNT_SECONDS = 60.0
COUNTED_ROWS_MAX = 100_000

_log = structlog.get_logger(__name__)


def pass_limits(settings: Settings) -> PassLimits:
    return PassLimits(
        page_rows=settings.reconciler_page_rows,
        pass_rows=settings.reconciler_pass_rows,
        window_seconds=settings.reconciler_window_seconds,
    )


class Reconciler:
    """``run`` once; ``stop`` from any callback of the same event loop."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings
        self._limits = pass_limits(settings)
        self._wakeups = WakeUps()
        self._stopping = False
        self._failures = 0
        self._passed_once = False
        self._housekeeping_due_at = 0.0  # on time.monotonic()
        self._counting_due_at = 0.0

    def ready(self) -> tuple[bool, str]:
        """Whether the last pass ended well."""
        if self._failures:
            return False, f"{self._failures} passes in a row have failed; the log says why"
        return (True, "passing") if self._passed_once else (False, "no pass has ended yet")

    def stop(self) -> None:
        """End after the page at hand."""
        self._stopping = True
        self._wakeups.call("stop")

    async def run(self) -> None:
        """Pass until ``stop``. A lost database is tried again with backoff; an error of our own SQL is raised."""
        listener = asyncio.create_task(
            listen(self._settings.postgres_conninfo, lambda *_: self._wakeups.call("notify"))
        )
        retention = asyncio.create_task(
            keep_payload_retention(self._pool, keep_days=self._settings.payload_retention_days)
        )
        woken_by = "start"
        try:
            while not self._stopping:
                for task in (listener, retention):
                    if task.done():
                        task.result()  # it ends only by an error that is not the connection's
                woken_by = await self._pass_and_wait(woken_by)
        finally:
            for task in (listener, retention):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        _log.info("reconciler ended")

    async def _pass_and_wait(self, woken_by: str) -> str:
        """One pass; returns what woke the next."""
        try:
            result = await self._pass(woken_by)
            await self._keep_partitions()
            await self._count_waiting()
        except psycopg.OperationalError as error:
            self._failures += 1
            PASSES.labels(woken_by, "failed").inc()
            pause_seconds = backoff_seconds(self._failures)
            _log.warning(
                "pass failed, trying again",
                error=" ".join(str(error).split()),
                check="OUTRIDER_POSTGRES_DSN",
                failures=self._failures,
                pause_seconds=round(pause_seconds, 2),
            )
            return await self._wakeups.wait(pause_seconds)
        self._failures = 0
        self._passed_once = True
        if not result.is_complete and not self._stopping:
            return "backlog"
        if not self._stopping:
            await asyncio.sleep(NOTIFY_SPACING_SECONDS)
        return await self._wakeups.wait(self._settings.reconciler_interval_seconds)

    async def _pass(self, woken_by: str) -> PassResult:
        started = time.perf_counter()
        result = await run_pass(self._pool, self._limits, woken_by=woken_by, stop=lambda: self._stopping)
        PASS_SECONDS.observe(time.perf_counter() - started)
        PASSES.labels(woken_by, "done").inc()
        MOVED.labels("due").inc(result.moved.due)
        MOVED.labels("lost").inc(result.moved.lost)
        MOVED.labels("lease_expired").inc(result.moved.lease_expired)
        OLDEST_DUE_SECONDS.set(await oldest_due_seconds(self._pool))
        if result.moved.total:
            _log.info(
                "pass",
                run_id=str(result.run_id),
                woken_by=woken_by,
                due=result.moved.due,
                lost=result.moved.lost,
                lease_expired=result.moved.lease_expired,
            )
        return result

    async def _count_waiting(self) -> None:
        if time.monotonic() < self._counting_due_at:
            return
        self._counting_due_at = time.monotonic() + COUNT_SECONDS
        counts = await waiting_by_reason(self._pool, rows_max=COUNTED_ROWS_MAX)
        WAITING.clear()  # a reason that nothing waits for any more
        for reason, rows in counts.items():
            WAITING.labels(reason).set(rows)

    async def _keep_partitions(self) -> None:
        if time.monotonic() < self._housekeeping_due_at:
            return
        try:
            await keep_partitions(
                self._pool,
                outbox_days=self._settings.outbox_retention_days,
                attempt_days=self._settings.attempt_retention_days,
                audit_days=self._settings.audit_retention_days,
            )
        except psycopg.Error as error:
            # Passes matter more: without partitions ahead, rows fall into the default one and are delivered as well.
            _log.error("partitions not kept, trying again", error=" ".join(str(error).split()))
            self._housekeeping_due_at = time.monotonic() + RETRY_SECONDS
        else:
            self._housekeeping_due_at = time.monotonic() + INTERVAL_SECONDS
