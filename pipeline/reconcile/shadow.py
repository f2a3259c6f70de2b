"""Shadow mode: what a source would admit, computed and not done, beside what is due and what the live path admits.

A look runs the claim page by page in transactions that are rolled back, so that the path that is live waits for its rows no
longer than for one page, and asks the direct query. Then it finds which of the rows are admitted by now, and which events of
the source's types were admitted that no look had seen. docs/sources.md says how that is compared.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from pipeline.ledger.pool import Connection, Pool
from pipeline.ledger.source_shadow import (
    Seen,
    admitted_since,
    begin_look,
    forget_seen,
    mark_live,
    record_live,
    record_seen,
)
from pipeline.ledger.sources import SHADOW, finish_source_run, start_source_run
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_metrics import OLDEST_DUE_SECONDS
from pipeline.reconcile.source_queries import claim_page, due_rows, lookup_rows, oldest_due_seconds
from pipeline.reconcile.source_result import Waking, describe, is_interruption
from pipeline.reconcile.source_rows import SourceError

KEPT_DAYS = 7
ADMITTED_PAGE_ROWS = 500
LATE_COMMIT_SECONDS = 60.0
"""An event may become visible so long after its time of admission, and be found as one that no look had seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookResult:
    run_id: UUID
    candidates: int
    direct: int
    is_complete: bool
    """False: there was more to see than the budget allows, or it was stopped, or failed."""
    error: str | None
    duration_seconds: float

    @property
    def counts(self) -> dict[str, Any]:
        return {
            "examined": self.candidates,
            "direct": self.direct,
            "is_complete": self.is_complete,
            "duration_seconds": round(self.duration_seconds, 6),
        }


async def look(
    pool: Pool, source: Source, shards: Sequence[int], waking: Waking, *, stop: Callable[[], bool] = lambda: False
) -> LookResult:
    """One look at these shards, under a run of its own. Raises psycopg.Error where the server or the way to it fails."""
    async with pool.connection() as connection:
        run_id = await start_source_run(
            connection,
            kind=SHADOW,
            woken_by=waking.woken_by,
            operator=waking.operator,
            reason=waking.reason,
            parameters={"source": source.source_id, "shards": list(shards)},
        )
    work = _Look(pool, source, shards, stop)
    error: str | None = None
    try:
        await work.run()
    except SourceError as wrong:
        error = str(wrong)
    except psycopg.Error as wrong:
        if is_interruption(wrong):
            raise
        error = describe(wrong)
    result = LookResult(
        run_id=run_id,
        candidates=work.candidates,
        direct=work.direct,
        is_complete=work.is_complete and error is None,
        error=error,
        duration_seconds=time.perf_counter() - work.started,
    )
    async with pool.connection() as connection:
        await finish_source_run(connection, run_id, result.counts, error)
    return result


class _Look:
    def __init__(self, pool: Pool, source: Source, shards: Sequence[int], stop: Callable[[], bool]) -> None:
        self._pool = pool
        self._source = source
        self._shards = shards
        self._stop = stop
        self.started = time.perf_counter()
        self.candidates = 0
        self.direct = 0
        self.is_complete = False

    async def run(self) -> None:
        source_id = self._source.source_id
        async with self._pool.connection() as connection:
            beginning = await begin_look(connection, source_id)
            oldest = await oldest_due_seconds(connection, self._source, shards=self._shards)
            OLDEST_DUE_SECONDS.labels(source_id, "shadow").set(oldest)
            saw_all = await self._see(connection, beginning.now)
            await mark_live(connection, source_id)
            since = beginning.shadow_since
            if beginning.looked_at is not None:
                since = max(since, beginning.looked_at - timedelta(seconds=LATE_COMMIT_SECONDS))
            found_all = await self._find_live(connection, (since, ""))
            await forget_seen(connection, source_id, days=KEPT_DAYS)
        self.is_complete = saw_all and found_all

    async def _see(self, connection: Connection, began_at: datetime) -> bool:
        """What claim and direct query give now; whether that is all."""
        seen: dict[str, Seen] = {}
        saw_all = False
        while not (saw_all or self._is_over() or len(seen) >= self._source.pass_rows):
            async with connection.transaction(force_rollback=True):
                page = await claim_page(
                    connection, self._source, shards=self._shards, refused=list(seen), limit=self._source.page_rows
                )
            saw_all = not page
            for row in page:
                event = row.event
                if event.event_id in seen:
                    raise SourceError(f"claim gives {event.event_id!r} again: it must pass over %(refused)s")
                # What has no payload would be refused; so would a type that the review did not see.
                is_candidate = row.refusal is None and event.payload is not None
                seen[event.event_id] = Seen(
                    event_id=event.event_id,
                    due_at=row.due_at,
                    event_type=event.event_type,
                    payload_sha256=hashlib.sha256(event.payload or b"").digest(),
                    by_claim=is_candidate,
                )
        direct = await due_rows(connection, self._source, shards=self._shards, limit=self._source.pass_rows)
        for due in direct:
            claimed = seen.get(due.event_id)
            seen[due.event_id] = Seen(
                event_id=due.event_id,
                due_at=due.due_at,
                event_type=claimed.event_type if claimed else None,
                payload_sha256=claimed.payload_sha256 if claimed else None,
                by_claim=claimed is not None and claimed.by_claim,
                by_query=True,
            )
        self.candidates = sum(row.by_claim for row in seen.values())
        self.direct = len(direct)
        rows = [row for row in seen.values() if row.by_claim or row.by_query]
        await record_seen(connection, self._source.source_id, began_at, rows)
        return saw_all and len(direct) < self._source.pass_rows

    async def _find_live(self, connection: Connection, after: tuple[Any, str]) -> bool:
        """Events of the source's types that were admitted and that no look had seen; whether all are found."""
        event_types = sorted(self._source.event_types)
        while not self._is_over():
            page = await admitted_since(
                connection, self._source.source_id, after=after, event_types=event_types, limit=ADMITTED_PAGE_ROWS
            )
            unknown = [event for event in page if not event.is_known]
            if unknown:
                ids = [event.event_id for event in unknown]
                found = await lookup_rows(connection, self._source, shards=self._shards, event_ids=ids)
                due_ats = {row.event_id: row.due_at for row in found}
                await record_live(connection, self._source.source_id, unknown, due_ats)
            if len(page) < ADMITTED_PAGE_ROWS:
                return True
            after = (page[-1].admitted_at, page[-1].event_id)
        return False

    def _is_over(self) -> bool:
        return self._stop() or time.perf_counter() - self.started >= self._source.pass_seconds
