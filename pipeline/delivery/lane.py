"""One lane: what a destination allows, what waits for it, and what is known of how it moves. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from pipeline.core.pacing import TokenBucket
from pipeline.delivery.line import Line

Item = TypeVar("Item")

# Weight of the newest request in a lane's mean duration.
DURATION_WEIGHT = 0.2


class ParkReason(StrEnum):
    """Why a delivery waits in the ledger: bounded in number, as it labels a metric."""

    RATE = "rate"
    CONCURRENCY = "concurrency"
    LANE_FULL = "lane_full"
    DISABLED = "destination_disabled"
    PAUSED = "destination_paused"
    THROTTLED = "throttled"
    BREAKER = "breaker_open"
    NO_SECRET = "no_secret"  # noqa: S105 - a reason


@dataclass(frozen=True, slots=True)
class Limits:
    """What a destination allows. ``closed`` parks everything, for that reason, until the limits say otherwise."""

    start_rate_per_second: float
    burst: int
    concurrency: int
    closed: ParkReason | None = None


@dataclass(frozen=True, slots=True)
class Parked(Generic[Item]):
    """An item that left its lane for the ledger, and when it shall be due."""

    item: Item
    reason: ParkReason
    delay_seconds: float


@dataclass(slots=True)
class Lane(Generic[Item]):
    destination_id: str
    last_used: float
    waiting: Line[Item]
    limits: Limits | None = None
    bucket: TokenBucket | None = None
    in_flight: int = 0
    # The ledger, which sees all workers, said: not before.
    held_until: float = 0.0
    held_for: ParkReason = ParkReason.RATE
    # Since when the lane has wanted to start something and had no free place.
    stalled_since: float | None = None
    duration_seconds: float = 0.0
    # Up to here parked deliveries have been given their times.
    booked_until: float = 0.0
    is_queued: bool = False
    wake_at: float | None = None

    def hold(self, reason: ParkReason, until: float) -> None:
        """Start nothing before that; of two holds the longer one counts."""
        if until >= self.held_until:
            self.held_until = until
            self.held_for = reason

    def learn(self, duration_seconds: float) -> None:
        """A request has ended: the lane moves, and this is how long a place was taken."""
        self.stalled_since = None
        known = self.duration_seconds
        self.duration_seconds = duration_seconds if known == 0 else known + DURATION_WEIGHT * (duration_seconds - known)

    def service_seconds(self, now: float) -> float:
        """How long a place stays taken, as far as is known: at least as long as the lane has stood still."""
        stalled = 0.0 if self.stalled_since is None else now - self.stalled_since
        return max(self.duration_seconds, stalled)

    def spacing_seconds(self, now: float) -> float:
        """Mean time from one start to the next."""
        if self.limits is None:
            return 0.0
        return max(1 / self.limits.start_rate_per_second, self.service_seconds(now) / self.limits.concurrency)
