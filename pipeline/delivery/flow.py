"""The way of one message: into its lane, claim, POST, settle, done. Or back to the ledger, or into quarantine.

Whatever happens to a message, it ends in exactly one of these, and only then is its offset done. Admission never waits
and never raises: everything that takes time is a task of its own, and their number is bounded by the lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import psycopg
import structlog

from pipeline.core.classify import Failure, Outcome
from pipeline.delivery import metrics
from pipeline.delivery.group_commit import ROW_ERRORS, ClosedError, GroupCommit
from pipeline.delivery.lanes import Lanes, Limits, Parked, ParkReason
from pipeline.delivery.outgoing import outgoing_request
from pipeline.delivery.quarantine import Headers, Quarantine
from pipeline.delivery.sender import Answer, NoAnswer, Sender
from pipeline.delivery.settling import Attempt, classify, settlement_of
from pipeline.delivery.stall_watch import StallWatch
from pipeline.delivery.transport import TP, Origin
from pipeline.delivery.unreadable import UNREADABLE
from pipeline.ledger.deliveries import (
    BreakerLimits,
    Claimed,
    ClaimRequest,
    Parking,
    Refused,
    Settlement,
    claim,
    disable_gone,
    park,
    refuse,
    settle,
)
from pipeline.ledger.destinations import Destination, load_destinations
from pipeline.ledger.pool import Pool
from pipeline.settings import Settings
from topics.codecs import RecordError, decode_dispatch, dispatch_identity

log = structlog.get_logger(__name__)

# Bodies that wait in lanes; beyond this they are read again from the ledger with the claim.
WAITING_BYTES_MAX = 64 * 1024 * 1024
DESTINATIONS_PAGE = 500
DATABASE_RETRY_SECONDS = 1.0
TICK_SECONDS = 0.2
# Pauses between askings while the ledger does not show yet what the stream has brought already. PostgreSQL streams a
# commit when it is flushed, and shows it to other sessions a moment later: with a synchronous standby, when that has it.
EARLY_PAUSES_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
# What a message's reason says of a delivery that was never tried. Another connector may say nothing: then all are alike.
FIRST_TRY_REASONS = frozenset({"admitted", "turn"})
# Refusals of a claim that hold the whole lane, for as long as the ledger says.
HOLDS: dict[str, ParkReason] = {
    "paced": ParkReason.RATE,
    "busy": ParkReason.CONCURRENCY,
    "throttled": ParkReason.THROTTLED,
    "open": ParkReason.BREAKER,
}
CLOSED: dict[str, ParkReason] = {"disabled": ParkReason.DISABLED, "paused": ParkReason.PAUSED}
# Part of the lease's margin that is kept for settling: a request is not begun when less is left.
SETTLE_SHARE = 1 / 3


class Messages(Protocol):
    """What the flow needs of the consumer."""

    def admit(self, origin: Origin) -> bool: ...
    def is_current(self, origin: Origin) -> bool: ...
    def done(self, origin: Origin) -> bool: ...
    def unsettled(self, tp: Any) -> int: ...
    def unsettled_in_all(self) -> int: ...
    def on_buffer_full(self, tp: Any) -> None: ...
    def on_buffer_drop(self, tp: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in its lane. ``body`` is None where the message had none, or too many bytes wait already."""

    origin: Origin
    delivery_id: str
    dispatch_seq: int
    body: bytes | None
    headers: Headers
    is_retry: bool


class DeliveryFlow:
    """All deliveries of a worker. Call ``serve`` and, for each message, ``admit``, in one event loop."""

    def __init__(
        self,
        settings: Settings,
        worker_id: str,
        *,
        messages: Messages,
        pool: Pool,
        sender: Sender,
        quarantine: Quarantine,
    ) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._messages = messages
        self._pool = pool
        self._sender = sender
        self._quarantine = quarantine
        self._lanes: Lanes[Waiting] = Lanes(
            ceiling=settings.worker_concurrency,
            depth=settings.worker_lane_depth,
            park_after_seconds=settings.worker_park_after_seconds,
            is_retry=lambda item: item.is_retry,
        )
        self._destinations: dict[str, Destination] = {}
        self._new_lane = asyncio.Event()
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._parking = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_draining = False
        self._stall_watch = StallWatch(self._now())
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        rows, seconds = settings.worker_group_commit_rows, settings.worker_group_commit_seconds
        margin = settings.worker_lease_margin_seconds

        async def claim_all(requests: Sequence[ClaimRequest]) -> Sequence[tuple[Claimed | Refused, float]]:
            asked_at = self._now()
            answers = await claim(pool, worker_id, requests, lease_margin_seconds=margin)
            return [(answer, asked_at) for answer in answers]

        # With each answer, when it was asked for: the lease is no older than that.
        self._claims: GroupCommit[ClaimRequest, tuple[Claimed | Refused, float]] = GroupCommit(
            "claim", claim_all, rows_max=rows, wait_seconds=seconds
        )
        breaker = BreakerLimits(
            failures=settings.worker_breaker_failures,
            open_seconds_first=settings.worker_breaker_first_seconds,
            open_seconds_max=settings.worker_breaker_max_seconds,
        )
        self._settlements: GroupCommit[Settlement, bool] = GroupCommit(
            "settle",
            lambda settlements: settle(pool, worker_id, settlements, breaker),
            rows_max=rows,
            wait_seconds=seconds,
        )

        async def park_all(parkings: Sequence[Parking]) -> Sequence[None]:
            await park(pool, parkings)
            return [None] * len(parkings)

        self._parkings: GroupCommit[Parking, None] = GroupCommit("park", park_all, rows_max=rows, wait_seconds=seconds)

    async def serve(self) -> None:
        """Run until cancelled. Raises what a task of a delivery raised: that is a defect."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.serve())
            group.create_task(self._settlements.serve())
            group.create_task(self._parkings.serve())
            group.create_task(self._keep_destinations())
            group.create_task(self._tick())
            await self._failed

    def admit(self, origin: Origin, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Take a message in. Never waits, never raises."""
        if self._is_draining or not self._messages.admit(origin):
            return
        self._stall_watch.moved(self._now())
        try:
            reason = self._take_in(origin, key, value, headers)
        except Exception as error:  # whatever it is, the partition must go on
            log.exception("message not admitted", topic=origin.topic, partition=origin.partition, offset=origin.offset)
            reason = f"defect: {error!r}"
        if reason is not None:
            self._start(self._put_away(origin, key, value, headers, reason))
        tp = TP(origin.topic, origin.partition)
        # Said again for each message, because Faust takes it back when its own buffer has drained.
        if self._messages.unsettled(tp) >= self._settings.worker_partition_high:
            self._messages.on_buffer_full(tp)

    def _take_in(self, origin: Origin, key: bytes | None, value: bytes | None, headers: Headers) -> str | None:
        """Put a message into its lane, or say why it cannot be understood."""
        problem = next((content for name, content in headers if name == UNREADABLE), None)
        if problem is not None:
            return f"cannot be read: {problem.decode(errors='replace')}"
        message = decode_dispatch(key, value, headers)
        if isinstance(message, RecordError):
            return str(message)
        if "\0" in message.destination_id + message.delivery_id:
            return "an id holds NUL, which no id in the ledger does"
        body = message.payload
        if body is not None and self._waiting_bytes + len(body) > WAITING_BYTES_MAX:
            body = None
        is_retry = message.reason is not None and message.reason not in FIRST_TRY_REASONS
        item = Waiting(origin, message.delivery_id, message.dispatch_seq, body, headers, is_retry)
        self._hold_body(item)
        parked = self._lanes.admit(message.destination_id, item, self._now())
        if message.destination_id not in self._destinations:
            self._new_lane.set()
        if parked is not None:
            self._park(parked)
        self._pump()
        return None

    def forget_lost(self) -> None:
        """Partitions were taken away: what waits from them is another worker's now."""
        for item in self._lanes.remove(lambda item: not self._messages.is_current(item.origin)):
            self._release_body(item)

    async def drain(self, seconds: float) -> bool:
        """Start nothing more, and wait for what is under way. False if that took longer than ``seconds``.

        What only waits is left to the next owner of its partition: it has not been touched.
        """
        self._is_draining = True
        self._lanes.remove(lambda item: True)
        deadline = self._now() + seconds
        while self._tasks or self._parking:
            left = deadline - self._now()
            if left <= 0:
                return False
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=min(left, TICK_SECONDS))
            else:
                await asyncio.sleep(min(left, TICK_SECONDS / 10))
        return True

    @property
    def in_flight(self) -> int:
        """Starts that have not ended."""
        return self._lanes.in_flight

    @property
    def is_stalled(self) -> bool:
        """Whether messages wait, and for long none was admitted and none was done."""
        return self._stall_watch.is_stalled(self._messages.unsettled_in_all(), self._now())

    # Starting

    def _pump(self) -> None:
        if self._is_draining:
            return
        now = self._now()
        while (start := self._lanes.take(now)) is not None:
            destination_id, item = start
            self._start(self._deliver(destination_id, item))
        moment = self._lanes.next_time()
        if moment is not None and (self._timer is None or self._timer.when() > moment):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(max(moment, now + 0.001), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._pump()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failed.done():
            return
        error = task.exception()
        if error is not None and not isinstance(error, ClosedError):
            self._failed.set_exception(error)

    # One delivery

    async def _deliver(self, destination_id: str, item: Waiting) -> None:
        self._release_body(item)
        destination = self._destinations.get(destination_id)
        if destination is None or not self._messages.is_current(item.origin):
            self._lanes.finished(destination_id, self._now())
            return
        # An unknown digest makes the ledger return the admitted bytes.
        digest = b"" if item.body is None else hashlib.sha256(item.body).digest()
        try:
            answer, asked_at = await self._claim(ClaimRequest(item.delivery_id, item.dispatch_seq, digest))
        except ROW_ERRORS as error:
            self._put_away_waiting(destination_id, item, f"cannot be claimed: {error}")
            self._lanes.finished(destination_id, self._now())
            return
        if isinstance(answer, Refused):
            self._refused(destination_id, item, answer)
            self._pump()
            return
        metrics.STARTS.inc()
        started_at = self._now()
        body = item.body if answer.payload is None else answer.payload
        attempt = await self._send(destination, item, answer, body or b"", lease_from=asked_at)
        await self._settle(destination, attempt)
        self._done(item.origin)
        self._lanes.finished(destination_id, self._now(), duration_seconds=self._now() - started_at)
        self._pump()

    async def _claim(self, request: ClaimRequest) -> tuple[Claimed | Refused, float]:
        for pause_seconds in EARLY_PAUSES_SECONDS:
            answer, asked_at = await self._claims.submit(request)
            if not (isinstance(answer, Refused) and answer.verdict == "early"):
                return answer, asked_at
            metrics.REFUSED.labels("early").inc()
            await asyncio.sleep(pause_seconds)
        return await self._claims.submit(request)

    async def _send(
        self, destination: Destination, item: Waiting, claimed: Claimed, body: bytes, *, lease_from: float
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
            dispatch_seq=item.dispatch_seq,
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
        metrics.observe_phases(attempt.result.timings)
        await self._heed(destination, attempt)
        if settlement.ambiguous:
            metrics.AMBIGUOUS.inc()
        try:
            counted = await self._settlements.submit(settlement)
        except ROW_ERRORS:
            # The lease runs out, and the reconciler finds the delivery; its evidence is this line.
            log.exception("result cannot be stored", delivery_id=settlement.delivery_id, outcome=settlement.outcome)
            return
        if not counted:
            metrics.LATE.inc()
            log.warning("result came late", delivery_id=settlement.delivery_id, attempt=settlement.attempt)

    async def _heed(self, destination: Destination, attempt: Attempt) -> None:
        """What an answer says of the receiver as such: that it is gone, or that it does not know us."""
        line, claimed = classify(attempt.result, destination.answer_rules), attempt.claimed
        if line.outcome is Outcome.UNAUTHORIZED:
            metrics.UNAUTHORIZED.inc()
            log.warning("receiver rejects our authentication", destination_id=destination.destination_id)
        if not line.disables_destination:
            return
        reason = f"gone: it answered 410 to {claimed.delivery_id}, attempt {claimed.attempt}"
        try:
            disabled = await disable_gone(
                self._pool,
                self._worker_id,
                destination_id=destination.destination_id,
                url=destination.url,
                delivery_id=claimed.delivery_id,
                attempt=claimed.attempt,
                reason=reason,
            )
        except psycopg.Error as error:
            # The next delivery will hear the same.
            log.warning("destination not disabled", reason=reason, error=" ".join(str(error).split()))
            return
        if disabled:
            log.warning("destination disabled", destination_id=destination.destination_id, reason=reason)

    def _refused(self, destination_id: str, item: Waiting, refused: Refused) -> None:
        metrics.REFUSED.labels(refused.verdict).inc()
        now = self._now()
        match refused.verdict:
            case "paced" | "busy" | "throttled" | "open":
                self._hold_body(item)
                self._lanes.defer(destination_id, item, HOLDS[refused.verdict], refused.wait_seconds, now)
                return
            case "disabled" | "paused":
                self._park(Parked(item, CLOSED[refused.verdict], self._settings.worker_park_after_seconds))
            case "early":
                self._put_away_waiting(destination_id, item, "the ledger has no such dispatch")
            case "stale":
                self._done(item.origin)
        self._lanes.finished(destination_id, now)

    # Ends of a message

    def _done(self, origin: Origin) -> None:
        if not self._messages.done(origin):
            return  # the partition is another worker's now
        self._stall_watch.moved(self._now())
        tp = TP(origin.topic, origin.partition)
        if self._messages.unsettled(tp) <= self._settings.worker_partition_low:
            self._messages.on_buffer_drop(tp)

    def _park(self, parked: Parked[Waiting]) -> None:
        item = parked.item
        self._release_body(item)
        metrics.PARKED.labels(parked.reason.value).inc()
        self._parking += 1
        answer = self._parkings.submit(
            Parking(item.delivery_id, item.dispatch_seq, parked.reason.value, parked.delay_seconds)
        )
        origin = item.origin

        def ended(answer: asyncio.Future[None]) -> None:
            self._parking -= 1
            if not answer.cancelled() and answer.exception() is None:
                self._done(origin)

        answer.add_done_callback(ended)

    async def _put_away(
        self, origin: Origin, key: bytes | None, value: bytes | None, headers: Headers, reason: str
    ) -> None:
        metrics.QUARANTINED.inc()
        await self._quarantine.put(origin, key, value, headers, reason)
        await self._refuse(headers, reason)
        self._done(origin)

    async def _refuse(self, headers: Headers, reason: str) -> None:
        """Tell the ledger, as far as the message says which dispatch it was; else that one counts as lost in its time."""
        identity = dispatch_identity(headers)
        if identity is None:
            return
        try:
            state = await refuse(self._pool, *identity, reason)
        except psycopg.Error as error:
            log.warning("refusal not recorded, the dispatch will count as lost", error=" ".join(str(error).split()))
            return
        if state == "dead":
            metrics.REFUSED_TO_DEATH.inc()
            log.error("delivery is dead, none of its messages could be handled", delivery_id=identity[0], reason=reason)

    def _put_away_waiting(self, destination_id: str, item: Waiting, reason: str) -> None:
        self._start(self._put_away(item.origin, destination_id.encode(), item.body, item.headers, reason))

    # Upkeep

    async def _keep_destinations(self) -> None:
        """Read settings of destinations: at once for a new lane, and again when they have grown old."""
        cache_seconds = self._settings.worker_destination_cache_seconds
        refresh_at = self._now() + cache_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(refresh_at):
                    await self._new_lane.wait()
            self._new_lane.clear()
            if self._now() >= refresh_at:
                wanted = self._lanes.destinations()
                refresh_at = self._now() + cache_seconds
            else:
                wanted = self._lanes.unconfigured()
            for first in range(0, len(wanted), DESTINATIONS_PAGE):
                await self._read_destinations(wanted[first : first + DESTINATIONS_PAGE])

    async def _read_destinations(self, destination_ids: Sequence[str]) -> None:
        try:
            found = await load_destinations(self._pool, destination_ids, self._settings.vault)
        except psycopg.Error as error:
            log.warning("destinations not read, trying again", error=" ".join(str(error).split()))
            await asyncio.sleep(DATABASE_RETRY_SECONDS)
            self._new_lane.set()
            return
        now = self._now()
        for destination_id in destination_ids:
            destination = found.get(destination_id)
            if destination is None:
                self._destination_is_unknown(destination_id)
                continue
            self._tell_problem(self._destinations.get(destination_id), destination)
            self._destinations[destination_id] = destination
            self._lanes.configure(destination_id, _limits(destination), now)
            hold = None if destination.hold is None else HOLDS[destination.hold]
            self._lanes.hold(destination_id, hold, destination.hold_seconds, now)
        self._pump()

    @staticmethod
    def _tell_problem(before: Destination | None, now: Destination) -> None:
        if now.problem is not None and (before is None or before.problem != now.problem):
            log.error("destination cannot be sent to", destination_id=now.destination_id, problem=now.problem)

    def _destination_is_unknown(self, destination_id: str) -> None:
        for item in self._lanes.close(destination_id):
            self._release_body(item)
            self._put_away_waiting(destination_id, item, "the ledger has no such destination")

    async def _tick(self) -> None:
        """Park what waits too long by now, forget what is idle, and show the numbers."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._now()
            if not self._is_draining:
                for parked in self._lanes.surplus(now):
                    self._park(parked)
                self._pump()
            for destination_id in self._lanes.forget_idle(now):
                self._destinations.pop(destination_id, None)
            metrics.IN_FLIGHT.set(self._lanes.in_flight)
            metrics.WAITING.set(self._lanes.waiting)
            metrics.LANES.set(len(self._lanes))
            unsettled = self._messages.unsettled_in_all()
            metrics.UNSETTLED.set(unsettled)
            self._stall_watch.look(unsettled, now)

    def _hold_body(self, item: Waiting) -> None:
        self._waiting_bytes += len(item.body or b"")

    def _release_body(self, item: Waiting) -> None:
        self._waiting_bytes -= len(item.body or b"")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _limits(destination: Destination) -> Limits:
    """Those in force: a destination that was slowed down has less of each than its settings say."""
    closed = None
    if not destination.enabled:
        closed = ParkReason.DISABLED
    elif destination.is_paused:
        closed = ParkReason.PAUSED
    elif not destination.secrets:
        closed = ParkReason.NO_SECRET
    share = destination.rate_share
    return Limits(
        destination.start_rate_per_second * share,
        max(1, math.floor(destination.burst * share)),
        destination.concurrency,
        closed,
    )
