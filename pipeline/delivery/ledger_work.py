"""A worker's claims, settlements and parkings, gathered: one statement for many deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pipeline.delivery import metrics
from pipeline.delivery.group_commit import GroupCommit
from pipeline.ledger.deliveries import (
    BreakerLimits,
    Claimed,
    ClaimRequest,
    Parking,
    Refused,
    Settlement,
    claim,
    park,
    settle,
)
from pipeline.ledger.pool import Pool
from pipeline.settings import Settings

# Pauses between askings while the ledger does not show yet what the stream has brought already. PostgreSQL streams a
# commit when it is flushed, and shows it to other sessions a moment later: with a synchronous standby, when that has it.
EARLY_PAUSES_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

AskedClaim = tuple[Claimed | Refused, float]


class LedgerWork:
    """Run ``serve``; the rest answers when its statement has. All raise one of group_commit.ROW_ERRORS, or ClosedError."""

    def __init__(self, settings: Settings, pool: Pool, worker_id: str, *, now: Callable[[], float]) -> None:
        rows, seconds = settings.worker_group_commit_rows, settings.worker_group_commit_seconds
        margin = settings.worker_lease_margin_seconds
        breaker = BreakerLimits(
            failures=settings.worker_breaker_failures,
            open_seconds_first=settings.worker_breaker_first_seconds,
            open_seconds_max=settings.worker_breaker_max_seconds,
        )

        async def claim_all(requests: Sequence[ClaimRequest]) -> Sequence[AskedClaim]:
            asked_at = now()
            answers = await claim(pool, worker_id, requests, lease_margin_seconds=margin)
            return [(answer, asked_at) for answer in answers]

        async def settle_all(settlements: Sequence[Settlement]) -> Sequence[bool]:
            return await settle(pool, worker_id, settlements, breaker)

        async def park_all(parkings: Sequence[Parking]) -> Sequence[None]:
            await park(pool, parkings)
            return [None] * len(parkings)

        self._claims = GroupCommit("claim", claim_all, rows_max=rows, wait_seconds=seconds)
        self._settlements = GroupCommit("settle", settle_all, rows_max=rows, wait_seconds=seconds)
        self._parkings = GroupCommit("park", park_all, rows_max=rows, wait_seconds=seconds)

    async def serve(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._claims, self._settlements, self._parkings):
                group.create_task(work.serve())

    async def claim(self, request: ClaimRequest) -> AskedClaim:
        """The answer, and when it was asked for: a lease is no older than that. Asks again while it is early."""
        for pause_seconds in EARLY_PAUSES_SECONDS:
            answer, asked_at = await self._claims.submit(request)
            if not (isinstance(answer, Refused) and answer.verdict == "early"):
                return answer, asked_at
            metrics.REFUSED.labels("early").inc()
            await asyncio.sleep(pause_seconds)
        return await self._claims.submit(request)

    def settle(self, settlement: Settlement) -> asyncio.Future[bool]:
        """Whether the result counted."""
        return self._settlements.submit(settlement)

    def park(self, parking: Parking) -> asyncio.Future[None]:
        return self._parkings.submit(parking)
