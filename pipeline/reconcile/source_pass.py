"""One pass over one source: bounded pages, each claimed and admitted in one transaction, one run.

Whoever wakes it says nothing about what is due. Two passes at once divide the work, because a claim passes over rows that
another transaction holds. A pass that is killed leaves its rows due, or admitted: never one without the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, replace
from uuid import UUID

import psycopg

from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.sources import (
    PASS,
    Modes,
    count_source_run,
    current_modes,
    describe_source_run,
    finish_source_run,
    forget_old_refusals,
    record_refusals,
    start_source_run,
    waiting_refusals,
)
from pipeline.reconcile.backoff import backoff_seconds
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_isolation import CANDIDATES_MAX, ISOLATED_MAX, isolate
from pipeline.reconcile.source_metrics import OLDEST_DUE_SECONDS, PAGE_SECONDS, PASS_SECONDS, PASSES, REFUSED, ROWS
from pipeline.reconcile.source_page import PageRefusedError, take_page, try_claim
from pipeline.reconcile.source_queries import due_rows, oldest_due_seconds
from pipeline.reconcile.source_result import SourcePassResult, Tally, Waking, describe, is_interruption, is_of_a_row
from pipeline.reconcile.source_rows import SourceError, shown

REFUSED_MAX = 10_000
"""Rows of one source that may be passed over; beyond them something is wrong with the source, not with rows."""
PAGE_TRIES = 5

# Another transaction holds one of the events, or rows were taken crosswise: the same page again is right.
_TRANSIENT = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


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
    work = _Pass(pool, source, run_id, Tally.of(waking.counts), shards=modes.live, stop=stop)
    error: str | None = None
    if modes.enabled and modes.live:
        try:
            await work.run(retries_refused=waking.retries_refused)
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

    def __init__(
        self,
        pool: Pool,
        source: Source,
        run_id: UUID,
        tally: Tally,
        *,
        shards: Sequence[int],
        stop: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._source = source
        self._run_id = run_id
        self._tally = tally
        self._shards = shards
        self._rows_max = tally.examined + source.pass_rows
        self._stop = stop
        self._started = time.perf_counter()
        self._refused: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._isolated = 0
        self._page_before: Set[str] = frozenset()
        self._due_error: psycopg.Error | None = None
        self._before: float | None = None
        self._after: float | None = None
        self.is_complete = False

    async def run(self, *, retries_refused: bool) -> None:
        async with self._pool.connection() as connection:
            self._before = await self._oldest_due_seconds(connection)
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
            self._after = await self._oldest_due_seconds(connection)
        REFUSED.labels(self._source.source_id).set(len(self._refused))
        if self._due_error is not None:
            raise SourceError(f"due fails: {describe(self._due_error)}")

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

    async def _oldest_due_seconds(self, connection: Connection) -> float | None:
        """None where a row makes the query fail: what the claim can take goes on, and the run says so at its end."""
        try:
            age_seconds = await oldest_due_seconds(connection, self._source, shards=self._shards)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            self._due_error = error
            return None
        OLDEST_DUE_SECONDS.labels(self._source.source_id, "live").set(age_seconds)
        return age_seconds

    async def _next_page(self) -> None:
        """One page; or the knowledge of rows that the next page is to pass over."""
        limit = min(self._source.page_rows, self._rows_max - self._tally.examined)
        try:
            has_rows = await self._take(self._refused, limit)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            await self._isolate(error, limit)
        else:
            self.is_complete = not has_rows

    async def _take(self, passed_over: Set[str], limit: int) -> bool:
        """A page that passes over these; False where it gives nothing. A page with refused rows is taken back."""
        source_id, started = self._source.source_id, time.perf_counter()
        for tries in range(1, PAGE_TRIES + 1):
            try:
                async with self._pool.connection() as connection:
                    page = await take_page(
                        connection, self._source, self._run_id, self._tally,
                        passed_over=passed_over, before=self._page_before, limit=limit,
                    )  # fmt: skip
                break
            except PageRefusedError as refused:
                await self._pass_over(refused.reasons)
                return True
            except _TRANSIENT:
                if tries == PAGE_TRIES:
                    raise
                await asyncio.sleep(backoff_seconds(tries))
        if page is None:
            return False
        for name in ("admitted", "existing", "unsubscribed"):
            ROWS.labels(source_id, name).inc(getattr(page.tally, name) - getattr(self._tally, name))
        PAGE_SECONDS.labels(source_id).observe(time.perf_counter() - started)
        self._tally, self._page_before = page.tally, page.event_ids
        return True

    async def _isolate(self, error: psycopg.Error, limit: int) -> None:
        """The claim failed over some row: admit the others, and put that one on record. Raises SourceError if that cannot be."""
        try:
            async with self._pool.connection() as connection:
                due = await due_rows(
                    connection, self._source, shards=self._shards, limit=len(self._refused) + CANDIDATES_MAX
                )
                candidates = [row.event_id for row in due if row.event_id not in self._refused]
                # What fails with all of these left out is the fault of none of them.
                await try_claim(connection, self._source, passed_over=self._refused.union(candidates))
        except psycopg.Error as other:
            if not is_of_a_row(other):
                raise
            raise SourceError(
                f"{_told(error, limit)} with what is due left out, this fails: {describe(other)}"
            ) from None

        async def take(group: Sequence[str]) -> bool:
            return await self._take(self._refused.union(candidates).difference(group), len(group))

        async def refuse(event_id: str, wrong: psycopg.Error) -> None:
            self._isolated += 1
            await self._pass_over({event_id: f"the claim fails for it: {describe(wrong)}"})
            if self._isolated >= ISOLATED_MAX:
                raise SourceError(
                    f"the claim fails for each of {ISOLATED_MAX} rows, the last one: {shown(event_id)}: {describe(wrong)}"
                )

        # Something is to come of it before the budget counts: else a short one would begin the search anew each time.
        has_moved = await isolate(
            candidates[:limit],
            take=take,
            refuse=refuse,
            is_over=lambda moved: self._stop() or (moved and self._is_over()),
        )
        if not (has_moved or self._stop()):
            raise SourceError(
                f"{_told(error, limit)} no due row fails alone, from {shown(candidates[0]) if candidates else 'none'} on"
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


def _told(error: psycopg.Error, limit: int) -> str:
    return f"{describe(error)}; which row of a page of {limit} is the reason cannot be told:"


def _count(source: Source, waking: Waking, result: SourcePassResult) -> None:
    PASSES.labels(source.source_id, waking.woken_by, "failed" if result.error else "done").inc()
    PASS_SECONDS.labels(source.source_id).observe(result.duration_seconds)
