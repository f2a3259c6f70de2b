"""Sources in the reconciler: what wakes them, and their passes side by side, until it is told to stop.

Every call from outside (HTTP, Kafka, NOTIFY) becomes a row in the ledger, which any reconciler takes; intervals and cron
expressions are one for all reconcilers, since their last time lies in the ledger too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from uuid import UUID

import psycopg
import structlog

from pipeline.ledger.pool import Pool
from pipeline.ledger.sources import (
    Standing,
    forget_empty_passes,
    register,
    standings,
    take_cron,
    take_interval,
    take_wakeup,
    wake,
)
from pipeline.reconcile.backoff import backoff_seconds
from pipeline.reconcile.shadow import look
from pipeline.reconcile.source_clock import cron_is_due, interval_is_due
from pipeline.reconcile.source_file import Source, is_source_id
from pipeline.reconcile.source_measuring import measure_oldest_due
from pipeline.reconcile.source_metrics import FAILURES, UNKNOWN_WAKEUPS
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import SourcePassResult, Waking
from pipeline.reconcile.source_rows import shown
from pipeline.reconcile.wakeup_topic import read_wakeups
from pipeline.reconcile.wakeups import WakeUps, listen
from pipeline.settings import Settings

CALLED_CHANNEL = "outrider_source"
"""Anybody's: the payload is a source's id."""
WOKEN_CHANNEL = "outrider_source_woken"
"""Our own: a wake-up lies in the ledger."""

LOOK_SECONDS = 1.0
LOOK_SPACING_SECONDS = 0.02
LEASE_MARGIN_SECONDS = 60.0
"""A pass that has not ended so long after its budget was killed. A page takes at most the statement's time-out."""
HOUSEKEEPING_SECONDS = 3_600.0
EMPTY_PASSES_HOURS = 24
FAILED_PAUSE_SECONDS_MAX = 60.0
REFUSALS_TOLD = 3

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _State:
    """What this process knows of one source."""

    source: Source
    running: asyncio.Task[None] | None = None
    again: str | None = None
    """Why another pass is to follow without a call: ``backlog`` where the budget was used up, ``retry`` after a failure."""
    failures: int = 0
    not_before: float = 0.0  # on time.monotonic()
    started_at: float = 0.0


class SourceReconciler:
    """``run`` once; ``stop`` from any callback of the same event loop."""

    def __init__(self, pool: Pool, settings: Settings, sources: Mapping[str, Source]) -> None:
        self._pool = pool
        self._settings = settings
        self._states = {source_id: _State(source) for source_id, source in sources.items()}
        # One connection is for the ledger's own passes, one for looking.
        self._passes_max = max(1, pool.max_size - 2)
        self._wakeups = WakeUps()
        self._called: set[tuple[str, str]] = set()
        self._stopping = asyncio.Event()
        self._housekeeping_due_at = 0.0  # on time.monotonic()
        intervals = [source.interval_seconds for source in sources.values() if source.interval_seconds is not None]
        self._look_seconds = min(LOOK_SECONDS, *intervals) if intervals else LOOK_SECONDS

    def stop(self) -> None:
        """End after the pages at hand."""
        self._stopping.set()
        self._wakeups.call("stop")

    def call(self, source_id: str, woken_by: str) -> None:
        """Ask for a pass of a source that may be unknown; any number of calls before the next look are one."""
        if source_id in self._states:
            self._called.add((source_id, woken_by))
            self._wakeups.call(woken_by)

    async def run(self) -> None:
        """Look and pass until ``stop``. A lost database is tried again with backoff."""
        listener = asyncio.create_task(
            listen(
                self._settings.postgres_conninfo,
                self._notified,
                channels=(CALLED_CHANNEL, WOKEN_CHANNEL),
                application="outrider source wake-ups",
            )
        )
        topic = asyncio.create_task(read_wakeups(self._settings, self._named_by_kafka, self._stopping))
        measuring = asyncio.create_task(
            measure_oldest_due(self._pool, [state.source for state in self._states.values()])
        )
        failures, is_registered = 0, False
        try:
            while not self._stopping.is_set():
                for task in (listener, topic, measuring):
                    if task.done():
                        task.result()  # it ends only by an error that is not the connection's
                try:
                    if not is_registered:
                        await self._register()
                        is_registered = True
                    await self._look()
                    failures = 0
                except psycopg.OperationalError as error:
                    failures += 1
                    _log.warning("sources not looked at, trying again", error=" ".join(str(error).split()))
                    await self._wakeups.wait(backoff_seconds(failures))
                await asyncio.sleep(LOOK_SPACING_SECONDS)
                await self._wakeups.wait(self._look_seconds)
        finally:
            self._stopping.set()
            listener.cancel()
            measuring.cancel()
            running = [state.running for state in self._states.values() if state.running is not None]
            await asyncio.gather(listener, topic, measuring, *running, return_exceptions=True)
        _log.info("sources ended")

    def _notified(self, channel: str, payload: str) -> None:
        if channel == CALLED_CHANNEL:
            self.call(payload, "notify")
        else:
            self._wakeups.call("wake-up")

    async def _named_by_kafka(self, source_ids: set[str]) -> None:
        for source_id in source_ids:
            if not is_source_id(source_id) or await self._wake(source_id, "kafka") is None:
                UNKNOWN_WAKEUPS.inc()
                _log.warning("a wake-up names no source", source=shown(source_id))

    async def _wake(self, source_id: str, woken_by: str) -> UUID | None:
        return await wake(self._pool, source_id, woken_by=woken_by, operator=None)

    async def _register(self) -> None:
        for state in self._states.values():
            source = state.source
            await register(
                self._pool,
                source.source_id,
                description=source.description,
                shard_count=source.shard_count,
                can_shadow=source.lookup is not None,
            )
        _log.info("sources", sources=list(self._states))

    async def _look(self) -> None:
        """Begin the passes that something has asked for."""
        for source_id, woken_by in list(self._called):
            await self._wake(source_id, woken_by)
            self._called.discard((source_id, woken_by))
        now = time.monotonic()
        if now >= self._housekeeping_due_at:
            self._housekeeping_due_at = now + HOUSEKEEPING_SECONDS
            await forget_empty_passes(self._pool, hours=EMPTY_PASSES_HOURS)
        standing = await standings(self._pool, list(self._states))
        # Whoever began longest ago comes first, so that no source waits for ever behind busy ones.
        for state in sorted(self._states.values(), key=lambda state: state.started_at):
            if self._stopping.is_set() or self._running() >= self._passes_max:
                return
            source_id = state.source.source_id
            if state.running is None and now >= state.not_before and source_id in standing:
                waking = await self._due(state, standing[source_id])
                if waking is not None:
                    state.started_at = now
                    state.running = asyncio.create_task(self._pass(state, waking))

    def _running(self) -> int:
        return sum(state.running is not None for state in self._states.values())

    async def _due(self, state: _State, standing: Standing) -> Waking | None:
        """Why a pass is to begin now. Whatever is taken here is this process's to do."""
        source = state.source
        is_woken = standing.is_woken
        if (
            standing.is_on
            and source.cron is not None
            and cron_is_due(source.cron, source.time_zone, standing.cron_at, standing.now)
        ):
            is_woken |= await take_cron(self._pool, source.source_id, standing.cron_at)
        if is_woken:
            lease_seconds = source.pass_seconds + LEASE_MARGIN_SECONDS
            taken = await take_wakeup(self._pool, source.source_id, lease_seconds=lease_seconds)
            if taken is not None:
                return Waking(
                    woken_by=taken.woken_by, operator=taken.operator, run_id=taken.run_id, counts=taken.counts
                )
        if not standing.is_on:
            return None
        if state.again is not None:
            return Waking(woken_by=state.again)
        if (
            source.interval_seconds is not None
            and interval_is_due(source.interval_seconds, standing.interval_at, standing.now)
            and await take_interval(self._pool, source.source_id, standing.interval_at)
        ):
            return Waking(woken_by="interval")
        return None

    async def _pass(self, state: _State, waking: Waking) -> None:
        source_id = state.source.source_id
        state.again = None
        has_failed = True
        try:
            result = await run_source_pass(self._pool, state.source, waking, stop=self._stopping.is_set)
            _tell(source_id, waking, result)
            error = result.error
            if result.shadow_shards and not self._stopping.is_set():
                seen = await look(self._pool, state.source, result.shadow_shards, waking, stop=self._stopping.is_set)
                if seen.error is not None:
                    error = seen.error
                    _log.error("look failed", source=source_id, run_id=str(seen.run_id), error=error)
            has_failed = error is not None
            state.again = None if result.is_complete else "backlog"
        except psycopg.Error as lost:
            _log.warning("pass interrupted", source=source_id, error=" ".join(str(lost).split()))
        except Exception:
            _log.exception("pass met a defect", source=source_id)
        finally:
            state.running = None
        state.failures = state.failures + 1 if has_failed else 0
        FAILURES.labels(source_id).set(state.failures)
        if has_failed:  # its clock may not come for a day
            state.again = "retry"
            state.not_before = time.monotonic() + min(FAILED_PAUSE_SECONDS_MAX, 2.0 ** min(state.failures, 16))
        self._wakeups.call("pass ended")


def _tell(source_id: str, waking: Waking, result: SourcePassResult) -> None:
    told = {"source": source_id, "run_id": str(result.run_id), "woken_by": waking.woken_by, **asdict(result.tally)}
    for event_id, reason in list(result.refusals.items())[:REFUSALS_TOLD]:
        _log.warning("row refused", source=source_id, event_id=shown(event_id), reason=reason)
    if result.error is not None:
        _log.error("pass failed", **told, error=result.error)
    elif result.tally.examined or result.tally.refused:
        _log.info("pass", **told)
