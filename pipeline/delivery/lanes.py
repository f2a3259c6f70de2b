"""Lanes: what waits for each destination, what may start now, and what goes back to the ledger.

A lane holds the messages of one destination, first tries ahead of retries (pipeline/delivery/line.py). It may start one when the destination's pace and
concurrency allow; lanes that may start take turns under the worker's ceiling. What would wait longer than
``park_after_seconds`` is parked: its row goes back to the ledger, due at a time that is spread along what the
destination takes, so that it holds up neither this worker's memory nor its partition.

All of this is decision: no I/O, no clock. Times are seconds of one clock that does not run backwards.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from pipeline.core.pacing import TokenBucket
from pipeline.delivery.lane import Lane, Limits, Parked, ParkReason
from pipeline.delivery.line import Line

__all__ = ["Lanes", "Limits", "ParkReason", "Parked"]

Item = TypeVar("Item")

# Longest time that a parked delivery is put off. The reconciler gives a destination no more than it takes anyway, and
# a destination that recovers must not stay idle while its deliveries wait out an estimate.
PARK_SECONDS_MAX = 60.0
IDLE_SECONDS = 30.0
BUSY_WAIT_SECONDS_MIN = 0.05


class Lanes(Generic[Item]):
    """All lanes of a worker."""

    def __init__(
        self,
        *,
        ceiling: int,
        depth: int,
        park_after_seconds: float,
        is_retry: Callable[[Item], bool] = lambda item: False,
    ) -> None:
        """``ceiling``: starts in flight over all lanes. ``depth``: items waiting in one lane."""
        self._is_retry = is_retry
        self._ceiling = ceiling
        self._depth = depth
        self._park_after_seconds = park_after_seconds
        self._lanes: dict[str, Lane[Item]] = {}
        # Lanes that may be able to start, in turn. The others come back by their time (_timed), when any start ends
        # (_short of places), or by admit(), finished() and configure().
        self._turns: deque[Lane[Item]] = deque()
        self._short: list[Lane[Item]] = []
        self._timed: list[tuple[float, int, Lane[Item]]] = []
        self._timed_count = 0
        self.in_flight = 0
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def destinations(self) -> list[str]:
        """Destinations that have a lane."""
        return list(self._lanes)

    def lanes(self) -> Iterable[Lane[Item]]:
        """All of them, to be looked at."""
        return self._lanes.values()

    def unconfigured(self) -> list[str]:
        """Destinations whose lanes wait for their limits."""
        return [lane.destination_id for lane in self._lanes.values() if lane.limits is None]

    def admit(self, destination_id: str, item: Item, now: float) -> Parked[Item] | None:
        """Take an item in. Where there is no room, the one whose turn would come last is parked, and is in the answer."""
        lane = self._lanes.get(destination_id)
        if lane is None:
            lane = self._lanes[destination_id] = Lane(destination_id, now, Line(self._is_retry))
        lane.last_used = now
        room, reason = self._room(lane, now)
        lane.waiting.append(item)
        if len(lane.waiting) > room:
            return self._park(lane, lane.waiting.pop_last(), reason, now)
        self.waiting += 1
        self._queue(lane)
        return None

    def configure(self, destination_id: str, limits: Limits, now: float) -> None:
        """Set or change a lane's limits; they hold at once."""
        lane = self._lanes.get(destination_id)
        if lane is None or lane.limits == limits:
            return
        lane.limits = limits
        if lane.bucket is None:
            lane.bucket = TokenBucket(limits.start_rate_per_second, limits.burst, now=now)
        else:
            lane.bucket.configure(limits.start_rate_per_second, limits.burst, now=now)
        self._queue(lane)

    def take(self, now: float) -> tuple[str, Item] | None:
        """The next start, by destination, or None if nothing may start now. Each needs one finished() or defer()."""
        while self._timed and self._timed[0][0] <= now:
            lane = heapq.heappop(self._timed)[2]
            lane.wake_at = None
            self._queue(lane)
        for _ in range(len(self._turns)):
            if self.in_flight >= self._ceiling:
                return None
            lane = self._turns.popleft()
            lane.is_queued = False
            if not self._may_start(lane, now):
                continue
            item = lane.waiting.pop()
            self.waiting -= 1
            lane.in_flight += 1
            self.in_flight += 1
            lane.last_used = now
            self._queue(lane)
            return lane.destination_id, item
        return None

    def finished(self, destination_id: str, now: float, *, duration_seconds: float | None = None) -> None:
        """A start has ended. ``duration_seconds`` of its request, if there was one; else its token goes back."""
        lane = self._release(destination_id, now)
        if duration_seconds is None:
            if lane.bucket is not None:
                lane.bucket.give_back()
        else:
            lane.learn(duration_seconds)
        self._queue(lane)

    def defer(self, destination_id: str, item: Item, reason: ParkReason, wait_seconds: float, now: float) -> None:
        """The ledger refused the start for now: the item is the lane's first again, after the wait."""
        lane = self._release(destination_id, now)
        lane.waiting.put_back(item)
        self.waiting += 1
        if reason is ParkReason.CONCURRENCY:
            if lane.stalled_since is None:
                lane.stalled_since = now
            if lane.bucket is not None:
                lane.bucket.give_back()
            wait_seconds = max(wait_seconds, BUSY_WAIT_SECONDS_MIN)
        lane.hold(reason, now + wait_seconds)
        self._queue(lane)

    def hold(self, destination_id: str, reason: ParkReason | None, seconds: float, now: float) -> None:
        """What the ledger says of the whole lane, apart from limits: start nothing for so long; None: go on at once."""
        lane = self._lanes.get(destination_id)
        if lane is None:
            return
        if lane.held_for in (ParkReason.THROTTLED, ParkReason.BREAKER):
            lane.held_until = now
        if reason is not None:
            lane.hold(reason, now + seconds)
        self._queue(lane)

    def surplus(self, now: float) -> Iterator[Parked[Item]]:
        """Take out, from the end of each lane, what would wait too long by now. Call it often."""
        for lane in self._lanes.values():
            if not lane.waiting:
                continue
            room, reason = self._room(lane, now)
            if len(lane.waiting) <= room:
                continue
            items = [lane.waiting.pop_last() for _ in range(len(lane.waiting) - room)]
            self.waiting -= len(items)
            # The one whose turn would come first gets the earliest time.
            for item in reversed(items):
                yield self._park(lane, item, reason, now)

    def remove(self, is_lost: Callable[[Item], bool]) -> list[Item]:
        """Take out the waiting items for which ``is_lost`` holds."""
        lost: list[Item] = []
        for lane in self._lanes.values():
            lost += lane.waiting.remove(is_lost)
        self.waiting -= len(lost)
        return lost

    def close(self, destination_id: str) -> list[Item]:
        """End a lane that has no destination; what waited in it is in the answer. Starts in flight go on."""
        lane = self._lanes[destination_id]
        items = lane.waiting.remove(lambda item: True)
        self.waiting -= len(items)
        if lane.in_flight == 0:
            del self._lanes[destination_id]
        return items

    def forget_idle(self, now: float) -> list[str]:
        """Drop lanes that nothing has used for IDLE_SECONDS: memory follows what is active, not what exists."""
        idle = [
            lane.destination_id
            for lane in self._lanes.values()
            if not lane.waiting and lane.in_flight == 0 and now - lane.last_used > IDLE_SECONDS
        ]
        for destination_id in idle:
            del self._lanes[destination_id]
        return idle

    def next_time(self) -> float | None:
        """When take() may find something that it does not find now, if nothing else happens."""
        return self._timed[0][0] if self._timed else None

    def _may_start(self, lane: Lane[Item], now: float) -> bool:
        """Whether it may; if not, the lane is put where it will be looked at again."""
        if not lane.waiting or lane.limits is None or lane.bucket is None or lane.limits.closed is not None:
            return False  # admit, configure or surplus goes on from here
        if lane.held_until > now:
            self._wake_at(lane, lane.held_until)
            return False
        if lane.in_flight >= lane.limits.concurrency:
            if lane.stalled_since is None:
                lane.stalled_since = now
            return False  # finished() goes on from here
        # No lane takes more places than it leaves free, so that lanes that hang never take the last ones from the rest.
        if lane.in_flight >= self._ceiling - self.in_flight:
            if lane.in_flight and lane.stalled_since is None:
                lane.stalled_since = now
            self._short.append(lane)
            return False
        if not lane.bucket.take(now):
            self._wake_at(lane, now + lane.bucket.wait_seconds(now))
            return False
        return True

    def _room(self, lane: Lane[Item], now: float) -> tuple[int, ParkReason]:
        """How many may wait in this lane, and the reason for those beyond."""
        if lane.limits is None or lane.bucket is None:
            return self._depth, ParkReason.LANE_FULL
        if lane.limits.closed is not None:
            return 0, lane.limits.closed
        budget_seconds = self._park_after_seconds - max(0.0, lane.held_until - now)
        if budget_seconds <= 0:
            return 0, lane.held_for
        by_rate = lane.bucket.starts_within(budget_seconds, now)
        by_concurrency = math.inf
        service_seconds = lane.service_seconds(now)
        if service_seconds > 0:
            # Where the lane stands still, places that look free here are taken by other workers.
            free_places = 0 if lane.stalled_since is not None else max(0, lane.limits.concurrency - lane.in_flight)
            by_concurrency = free_places + lane.limits.concurrency * budget_seconds / service_seconds
        least = min(self._depth, by_rate, by_concurrency)
        if least == self._depth:
            return self._depth, ParkReason.LANE_FULL
        return int(least), ParkReason.RATE if by_rate <= by_concurrency else ParkReason.CONCURRENCY

    def _park(self, lane: Lane[Item], item: Item, reason: ParkReason, now: float) -> Parked[Item]:
        due = max(lane.booked_until, lane.held_until, now + self._park_after_seconds)
        delay_seconds = min(due - now, PARK_SECONDS_MAX)
        lane.booked_until = now + delay_seconds + lane.spacing_seconds(now)
        return Parked(item, reason, delay_seconds)

    def _release(self, destination_id: str, now: float) -> Lane[Item]:
        lane = self._lanes[destination_id]
        lane.in_flight -= 1
        self.in_flight -= 1
        lane.last_used = now
        for short in self._short:
            self._queue(short)
        self._short.clear()
        return lane

    def _queue(self, lane: Lane[Item]) -> None:
        if not lane.is_queued and lane.waiting:
            lane.is_queued = True
            self._turns.append(lane)

    def _wake_at(self, lane: Lane[Item], moment: float) -> None:
        if lane.wake_at is not None and lane.wake_at <= moment:
            return
        lane.wake_at = moment
        self._timed_count += 1  # orders equal moments, as lanes have no order
        heapq.heappush(self._timed, (moment, self._timed_count, lane))
