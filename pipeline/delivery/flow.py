"""The way of one message: into its lane, claim, POST, settle, done. Or back to the ledger, or into quarantine.

Whatever happens to a message, it ends in exactly one of these, and only then is its offset done. Admission never waits
and never raises: everything that takes time is a task of its own, and their number is bounded by the lanes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
import structlog

from pipeline.delivery import metrics
from pipeline.delivery.alarm import Alarm
from pipeline.delivery.attempts import Attempts
from pipeline.delivery.destination_cache import DestinationCache, limits_of
from pipeline.delivery.destination_metrics import DestinationStanding
from pipeline.delivery.group_commit import ROW_ERRORS, ClosedError
from pipeline.delivery.lanes import Lanes, Parked, ParkReason
from pipeline.delivery.ledger_work import LedgerWork
from pipeline.delivery.quarantine import Quarantine
from pipeline.delivery.sender import Sender
from pipeline.delivery.spans import Spans
from pipeline.delivery.stall_watch import StallWatch
from pipeline.delivery.transport import TP, Origin
from pipeline.delivery.unreadable import UNREADABLE
from pipeline.ledger.deliveries import ClaimRequest, Parking, Refused, refuse
from pipeline.ledger.destinations import Destination
from pipeline.ledger.pool import Pool
from pipeline.settings import Settings
from topics.codecs import RecordError, decode_dispatch, dispatch_identity
from topics.quarantine_records import Headers

log = structlog.get_logger(__name__)

# Bodies that wait in lanes; beyond this they are read again from the ledger with the claim.
WAITING_BYTES_MAX = 64 * 1024 * 1024
TICK_SECONDS = 0.2
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


class Messages(Protocol):
    """What the flow needs of the consumer."""

    def admit(self, origin: Origin) -> bool: ...
    def is_current(self, origin: Origin) -> bool: ...
    def done(self, origin: Origin) -> bool: ...
    def unsettled(self, tp: Any) -> int: ...
    def unsettled_in_all(self) -> int: ...
    def lag(self) -> int: ...
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
        spans: Spans,
    ) -> None:
        # Asked for once: on Python before 3.12 each question is a system call, and there are many for each delivery.
        loop = asyncio.get_running_loop()
        self._now, self._start_task = loop.time, loop.create_task
        self._settings = settings
        self._messages = messages
        self._pool = pool
        self._quarantine = quarantine
        self._lanes: Lanes[Waiting] = Lanes(
            ceiling=settings.worker_concurrency,
            depth=settings.worker_lane_depth,
            park_after_seconds=settings.worker_park_after_seconds,
            is_retry=lambda item: item.is_retry,
        )
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._parking = 0
        self._alarm = Alarm(self._pump)
        self._is_draining = False
        self._stall_watch = StallWatch(self._now())
        self._failed: asyncio.Future[None] = loop.create_future()

        self._ledger = LedgerWork(settings, pool, worker_id, now=self._now)
        self._attempts = Attempts(
            settings, worker_id, pool=pool, sender=sender, ledger=self._ledger, spans=spans, now=self._now
        )
        self._destinations = DestinationCache(
            pool,
            settings.vault,
            max_age_seconds=settings.worker_destination_cache_seconds,
            known=self._destination_is_known,
            unknown=self._destination_is_unknown,
            in_use=self._lanes.destinations,
            wanted=self._lanes.unconfigured,
            read=self._pump,
        )

    async def serve(self) -> None:
        """Run until cancelled. Raises what a task of a delivery raised: that is a defect."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ledger.serve())
            group.create_task(self._destinations.serve())
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
        if self._destinations.get(message.destination_id) is None:
            self._destinations.ask()
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

    def standings(self) -> list[DestinationStanding]:
        """How each destination that has a lane stands here."""
        now = self._now()
        found = []
        for lane in self._lanes.lanes():
            destination = self._destinations.get(lane.destination_id)
            held_for = lane.held_for if lane.held_until > now else None
            found.append(
                DestinationStanding(
                    lane.destination_id,
                    in_flight=lane.in_flight,
                    waiting=len(lane.waiting),
                    rate_share=1.0 if destination is None else destination.rate_share,
                    is_open=held_for is ParkReason.BREAKER,
                    is_throttled=held_for is ParkReason.THROTTLED,
                )
            )
        return found

    # Starting

    def _pump(self) -> None:
        if self._is_draining:
            return
        now = self._now()
        while (start := self._lanes.take(now)) is not None:
            destination_id, item = start
            self._start(self._deliver(destination_id, item))
        moment = self._lanes.next_time()
        if moment is not None:
            self._alarm.set(moment)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._start_task(work)
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
            answer, asked_at = await self._ledger.claim(ClaimRequest(item.delivery_id, item.dispatch_seq, digest))
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
        await self._attempts.make(destination, answer, item.dispatch_seq, body or b"", lease_from=asked_at)
        self._done(item.origin)
        self._lanes.finished(destination_id, self._now(), duration_seconds=self._now() - started_at)
        self._pump()

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
        answer = self._ledger.park(
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

    def _destination_is_known(self, destination: Destination) -> None:
        now = self._now()
        self._lanes.configure(destination.destination_id, limits_of(destination), now)
        hold = None if destination.hold is None else HOLDS[destination.hold]
        self._lanes.hold(destination.destination_id, hold, destination.hold_seconds, now)

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
                self._destinations.forget(destination_id)
            metrics.IN_FLIGHT.set(self._lanes.in_flight)
            metrics.WAITING.set(self._lanes.waiting)
            metrics.LANES.set(len(self._lanes))
            unsettled = self._messages.unsettled_in_all()
            metrics.UNSETTLED.set(unsettled)
            metrics.LAG.set(self._messages.lag())
            self._stall_watch.look(unsettled, now)

    def _hold_body(self, item: Waiting) -> None:
        self._waiting_bytes += len(item.body or b"")

    def _release_body(self, item: Waiting) -> None:
        self._waiting_bytes -= len(item.body or b"")
