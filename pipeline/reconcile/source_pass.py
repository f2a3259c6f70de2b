"""One pass over one source: bounded pages, each claimed and admitted in one transaction, one run.

Whoever wakes it says nothing about what is due. Two passes at once divide the work, because a claim passes over rows that
another transaction holds. A pass that is killed leaves its rows due, or admitted: never one without the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from uuid import UUID

import psycopg

from pipeline.ledger.admission import Admitted, Refused, admit_many
from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.sources import (
    PASS,
    Modes,
    count_source_run,
    current_modes,
    describe_source_run,
    finish_source_run,
    forget_old_refusals,
    forget_refusals,
    record_refusals,
    start_source_run,
    waiting_refusals,
)
from pipeline.reconcile.backoff import backoff_seconds
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_metrics import OLDEST_DUE_SECONDS, PAGE_SECONDS, PASS_SECONDS, PASSES, REFUSED, ROWS
from pipeline.reconcile.source_queries import claim_page, oldest_due_seconds
from pipeline.reconcile.source_result import SourcePassResult, Tally, Waking, describe, is_interruption
from pipeline.reconcile.source_rows import ClaimedRow, SourceError

REFUSED_MAX = 10_000
"""Rows of one source that may be passed over; beyond them something is wrong with the source, not with rows."""
PAGE_TRIES = 5

# Another transaction holds one of the events, or rows were taken crosswise: the same page again is right.
_TRANSIENT = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


class _PageRefusedError(Exception):
    """Takes the page back; ``reasons`` by event id."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()
        self.reasons = reasons


async def run_source_pass(
    pool: Pool, source: Source, waking: Waking, *, stop: Callable[[], bool] = lambda: False
) -> SourcePassResult:
    """Claim and admit page by page, until nothing is due, the budget is used up, or ``stop`` says so.

    What the source's SQL or the server says against it is in the result and in the run; committed pages stand. Raises
    psycopg.Error where the server or the way to it fails; then the run stays open, as that of a pass which was killed.
    """
    async with pool.connection() as connection:
        async with connection.transaction():
            modes = await current_modes(connection, source.source_id, shard_count=source.shard_count)
        run_id = await _open_run(connection, source, waking, modes)
    work = _Pass(pool, source, run_id, Tally.of(waking.counts), stop)
    error: str | None = None
    if modes.enabled and modes.live:
        try:
            await work.run(modes.live, retries_refused=waking.retries_refused)
        except SourceError as wrong:
            error = str(wrong)
        except psycopg.Error as wrong:
            if is_interruption(wrong):  # says nothing about the source, and leaves the wake-up to another pass
                raise
            error = describe(wrong)
    else:
        work.is_complete = True
    result = work.result(modes, error)
    async with pool.connection() as connection:
        await finish_source_run(connection, run_id, result.counts, error)
    _count(source, waking, result)
    return result


class _Pass:
    """The pass at work, and what it knows so far."""

    def __init__(self, pool: Pool, source: Source, run_id: UUID, tally: Tally, stop: Callable[[], bool]) -> None:
        self._pool = pool
        self._source = source
        self._run_id = run_id
        self._tally = tally
        self._rows_max = tally.examined + source.pass_rows
        self._stop = stop
        self._started = time.perf_counter()
        self._refused: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._page_before: set[str] = set()
        self._before: float | None = None
        self._after: float | None = None
        self.is_complete = False

    async def run(self, shards: Sequence[int], *, retries_refused: bool) -> None:
        async with self._pool.connection() as connection:
            self._before = await oldest_due_seconds(connection, self._source, shards=shards)
            OLDEST_DUE_SECONDS.labels(self._source.source_id, "live").set(self._before)
            if not retries_refused:
                ids = await waiting_refusals(connection, self._source.source_id, limit=REFUSED_MAX)
                self._refused.update(ids)
        while not self.is_complete:
            await self._next_page()
            if self._is_over():
                break
        async with self._pool.connection() as connection:
            if self.is_complete:
                await forget_old_refusals(connection, self._source.source_id)
            self._after = await oldest_due_seconds(connection, self._source, shards=shards)
        OLDEST_DUE_SECONDS.labels(self._source.source_id, "live").set(self._after)
        REFUSED.labels(self._source.source_id).set(len(self._refused))

    def result(self, modes: Modes, error: str | None) -> SourcePassResult:
        return SourcePassResult(
            run_id=self._run_id,
            tally=self._tally,
            is_complete=self.is_complete and error is None,
            error=error,
            oldest_due_before_seconds=self._before,
            oldest_due_after_seconds=self._after,
            duration_seconds=time.perf_counter() - self._started,
            shards=modes.live,
            shadow_shards=modes.shadow if modes.enabled else [],
            enabled=modes.enabled,
            refusals=self._refusals,
        )

    def _is_over(self) -> bool:
        return (
            self._stop()
            or self._tally.examined >= self._rows_max
            or time.perf_counter() - self._started >= self._source.pass_seconds
        )

    async def _next_page(self) -> None:
        """One page, or the knowledge of rows that the next page is to pass over."""
        for tries in range(1, PAGE_TRIES + 1):
            try:
                async with self._pool.connection() as connection:
                    await self._page(connection)
            except _PageRefusedError as refused:
                await self._pass_over(refused.reasons)
            except _TRANSIENT:
                if tries == PAGE_TRIES:
                    raise
                await asyncio.sleep(backoff_seconds(tries))
                continue
            return

    async def _page(self, connection: Connection) -> None:
        source, started = self._source, time.perf_counter()
        async with connection.transaction():
            modes = await current_modes(connection, source.source_id, shard_count=source.shard_count)
            limit = min(source.page_rows, self._rows_max - self._tally.examined)
            rows: list[ClaimedRow] = []
            if modes.enabled and modes.live:
                rows = await claim_page(
                    connection, source, shards=modes.live, refused=sorted(self._refused), limit=limit
                )
            if not rows:
                self.is_complete = True
                return
            event_ids = {row.event.event_id for row in rows}
            if again := event_ids & (self._page_before | self._refused):
                raise SourceError(
                    f"claim gives {min(again)!r} again: it must take a row off what is due, and pass over %(refused)s"
                )
            tally = await self._admit(connection, rows)
            await forget_refusals(connection, source.source_id, list(event_ids))
            await count_source_run(connection, self._run_id, asdict(tally))
        for name in ("admitted", "existing", "unsubscribed"):
            ROWS.labels(source.source_id, name).inc(getattr(tally, name) - getattr(self._tally, name))
        PAGE_SECONDS.labels(source.source_id).observe(time.perf_counter() - started)
        self._tally, self._page_before = tally, event_ids

    async def _admit(self, connection: Connection, rows: Sequence[ClaimedRow]) -> Tally:
        """The tally with this page. Raises _PageRefusedError where a row of it cannot be admitted."""
        reasons = {row.event.event_id: row.refusal for row in rows if row.refusal is not None}
        if reasons:
            raise _PageRefusedError(reasons)
        answers = await admit_many(connection, [row.event for row in rows])
        reasons = {
            row.event.event_id: f"{answer.sqlstate}: {answer.message}"
            for row, answer in zip(rows, answers, strict=True)
            if isinstance(answer, Refused)
        }
        if reasons:
            raise _PageRefusedError(reasons)
        made = [answer for answer in answers if isinstance(answer, Admitted)]
        admitted = sum(any(delivery.created for delivery in answer.deliveries) for answer in made)
        unsubscribed = sum(not answer.deliveries for answer in made)
        return replace(
            self._tally,
            pages=self._tally.pages + 1,
            examined=self._tally.examined + len(rows),
            admitted=self._tally.admitted + admitted,
            unsubscribed=self._tally.unsubscribed + unsubscribed,
            existing=self._tally.existing + len(rows) - admitted - unsubscribed,
        )

    async def _pass_over(self, reasons: dict[str, str]) -> None:
        """The page was taken back: its refused rows stay due and are on record, and the next page goes past them."""
        tally = replace(self._tally, refused=self._tally.refused + len(reasons))
        async with self._pool.connection() as connection, connection.transaction():
            await record_refusals(connection, self._source.source_id, reasons)
            await count_source_run(connection, self._run_id, asdict(tally))
        self._tally = tally
        self._refused.update(reasons)
        ROWS.labels(self._source.source_id, "refused").inc(len(reasons))
        self._refusals |= reasons
        if len(self._refused) > REFUSED_MAX:
            event_id, why = next(iter(reasons.items()))
            raise SourceError(f"more than {REFUSED_MAX} rows are refused, the last one: {event_id}: {why}")


async def _open_run(connection: Connection, source: Source, waking: Waking, modes: Modes) -> UUID:
    parameters = {"source": source.source_id, "shards": modes.live, "enabled": modes.enabled}
    if waking.run_id is not None:
        await describe_source_run(connection, waking.run_id, parameters)
        return waking.run_id
    return await start_source_run(
        connection,
        kind=PASS,
        woken_by=waking.woken_by,
        operator=waking.operator,
        reason=waking.reason,
        parameters=parameters,
    )


def _count(source: Source, waking: Waking, result: SourcePassResult) -> None:
    PASSES.labels(source.source_id, waking.woken_by, "failed" if result.error else "done").inc()
    PASS_SECONDS.labels(source.source_id).observe(result.duration_seconds)
