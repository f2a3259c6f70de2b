"""What an answer says of its receiver as such: that it is gone for good, or that it does not know us."""

from __future__ import annotations

import asyncio

import psycopg
import structlog

from pipeline.core.classify import Outcome
from pipeline.delivery import metrics
from pipeline.delivery.settling import Attempt, classify
from pipeline.ledger.deliveries import disable_gone
from pipeline.ledger.destinations import Destination
from pipeline.ledger.pool import Pool

log = structlog.get_logger(__name__)

WARN_SECONDS = 60.0
"""A receiver that rejects our authentication rejects every delivery: one line of the log stands for many answers."""
WARNED_MAX = 10_000


class ReceiverNotices:
    """Heeds such answers, and none of the others."""

    def __init__(self, pool: Pool, worker_id: str) -> None:
        self._pool = pool
        self._worker_id = worker_id
        self._warned_at: dict[str, float] = {}

    async def heed(self, destination: Destination, attempt: Attempt) -> None:
        """Call it before the attempt is settled. Raises nothing: the next delivery would hear the same."""
        line = classify(attempt.result, destination.answer_rules)
        if line.outcome is Outcome.UNAUTHORIZED:
            self._warn(destination.destination_id)
        elif line.disables_destination:
            await self._disable(destination, attempt)

    def _warn(self, destination_id: str) -> None:
        metrics.UNAUTHORIZED.inc()
        now = asyncio.get_running_loop().time()
        if now < self._warned_at.get(destination_id, -WARN_SECONDS) + WARN_SECONDS:
            return
        if len(self._warned_at) >= WARNED_MAX:
            self._warned_at.clear()
        self._warned_at[destination_id] = now
        log.warning("receiver rejects our authentication", destination_id=destination_id)

    async def _disable(self, destination: Destination, attempt: Attempt) -> None:
        claimed = attempt.claimed
        reason = f"gone: it answered 410 to {claimed.delivery_id}, attempt {claimed.attempt}"
        try:
            is_disabled = await disable_gone(
                self._pool,
                self._worker_id,
                destination_id=destination.destination_id,
                url=destination.url,
                delivery_id=claimed.delivery_id,
                attempt=claimed.attempt,
                reason=reason,
            )
        except psycopg.Error as error:
            log.warning("destination not disabled", reason=reason, error=" ".join(str(error).split()))
            return
        if is_disabled:
            log.warning("destination disabled", destination_id=destination.destination_id, reason=reason)
