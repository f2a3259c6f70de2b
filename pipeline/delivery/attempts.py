"""One attempt: the request under its lease, what came of it, and what the ledger keeps of it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from pipeline.core.classify import Failure
from pipeline.delivery import metrics
from pipeline.delivery.group_commit import ROW_ERRORS
from pipeline.delivery.ledger_work import LedgerWork
from pipeline.delivery.notices import ReceiverNotices
from pipeline.delivery.outgoing import outgoing_request
from pipeline.delivery.sender import Answer, NoAnswer, Sender
from pipeline.delivery.settling import Attempt, settlement_of
from pipeline.delivery.spans import Spans
from pipeline.ledger.deliveries import Claimed, Settlement
from pipeline.ledger.destinations import Destination
from pipeline.ledger.pool import Pool
from pipeline.settings import Settings

log = structlog.get_logger(__name__)

# Part of the lease's margin that is kept for settling: a request is not begun when less is left.
SETTLE_SHARE = 1 / 3


class Attempts:
    """Makes attempts for one worker; what it raises is a defect, or ClosedError."""

    def __init__(
        self,
        settings: Settings,
        worker_id: str,
        *,
        pool: Pool,
        sender: Sender,
        ledger: LedgerWork,
        spans: Spans,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._notices = ReceiverNotices(pool, worker_id)
        self._sender = sender
        self._ledger = ledger
        self._spans = spans
        self._now = now
        # Asked once: a line for each success costs more than the rest of its bookkeeping.
        self._logs_successes = logging.getLogger(__name__).isEnabledFor(logging.DEBUG)

    async def make(
        self, destination: Destination, claimed: Claimed, dispatch_seq: int, body: bytes, *, lease_from: float
    ) -> None:
        """Send and settle. ``lease_from``: when the claim was asked for."""
        attempt = await self._send(destination, claimed, dispatch_seq, body, lease_from=lease_from)
        await self._settle(destination, attempt)

    async def _send(
        self, destination: Destination, claimed: Claimed, dispatch_seq: int, body: bytes, *, lease_from: float
    ) -> Attempt:
        begun, started_at = self._now(), datetime.now(UTC)
        margin_seconds = self._settings.worker_lease_margin_seconds
        # The ledger's time-out, which the lease was made for, not the one that was read some seconds ago.
        timeout_seconds = claimed.lease_seconds - margin_seconds
        if begun - lease_from > margin_seconds * (1 - SETTLE_SHARE):
            error = "the claim took so long that the request could outlive its lease"
            result: Answer | NoAnswer = NoAnswer(Failure.NOT_SENT, request_begun=False, error=error)
        else:
            result = await self._request(destination, claimed, body, timeout_seconds)
        duration_seconds = self._now() - begun
        metrics.ATTEMPT_SECONDS.observe(duration_seconds)
        return Attempt(
            claimed=claimed,
            dispatch_seq=dispatch_seq,
            key_ids=tuple(secret.key_id for secret in destination.secrets),
            started_at=started_at,
            duration_seconds=duration_seconds,
            result=result,
        )

    async def _request(
        self, destination: Destination, claimed: Claimed, body: bytes, timeout_seconds: float
    ) -> Answer | NoAnswer:
        try:
            request = outgoing_request(
                destination,
                delivery_id=claimed.delivery_id,
                event_id=claimed.event_id,
                attempt=claimed.attempt,
                content_type=claimed.content_type,
                event_headers=claimed.headers,
                body=body,
                timestamp=int(time.time()),
                timeout_seconds=timeout_seconds,
            )
        except ValueError as error:
            return NoAnswer(Failure.NOT_SENT, request_begun=False, error=f"the request cannot be written: {error}")
        return await self._sender.send(request)

    async def _settle(self, destination: Destination, attempt: Attempt) -> None:
        settlement = settlement_of(
            attempt,
            destination,
            retry_after_seconds_max=self._settings.retry_after_max_seconds,
            draw=random.random,
        )
        metrics.ATTEMPTS.labels(settlement.outcome).inc()
        if settlement.state == "dead":
            metrics.DEAD.labels(settlement.outcome).inc()
        self._tell(destination, settlement)
        self._spans.ended(destination, attempt, settlement)
        metrics.observe_phases(attempt.result.timings)
        await self._notices.heed(destination, attempt)
        if settlement.ambiguous:
            metrics.AMBIGUOUS.inc()
        try:
            counted = await self._ledger.settle(settlement)
        except ROW_ERRORS:
            # The lease runs out, and the reconciler finds the delivery; its evidence is this line.
            log.exception("result cannot be stored", delivery_id=settlement.delivery_id, outcome=settlement.outcome)
            return
        if not counted:
            metrics.LATE.inc()
            log.warning("result came late", delivery_id=settlement.delivery_id, attempt=settlement.attempt)

    def _tell(self, destination: Destination, settlement: Settlement) -> None:
        """A line of what came of it: a death is a warning, a failure is said, a success only where it is asked for."""
        if settlement.state == "succeeded" and not self._logs_successes:
            return
        tell = {"succeeded": log.debug, "pending": log.info, "dead": log.warning}[settlement.state]
        tell(
            "attempt ended",
            delivery_id=settlement.delivery_id,
            destination_id=destination.destination_id,
            attempt=settlement.attempt,
            result=settlement.state,
            outcome=settlement.outcome,
            status=settlement.status,
            error=settlement.error,
            seconds=round(settlement.duration_seconds, 4),
        )
