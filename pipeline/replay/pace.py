"""How many deliveries a run may dispatch now, so that it keeps to its rate. Pure: the caller has the clock."""

from __future__ import annotations


class Pace:
    """A bucket that holds what the rate gives in a second, at least one; it begins with one."""

    def __init__(self, rate_per_second: float, now: float) -> None:
        self._rate = rate_per_second
        self._held_max = max(1.0, rate_per_second)
        self._held = 1.0
        self._at = now

    def allowed(self, now: float) -> int:
        """Whole deliveries that may go at this moment."""
        self._held = min(self._held_max, self._held + self._rate * max(0.0, now - self._at))
        self._at = max(self._at, now)
        return int(self._held)

    def spend(self, deliveries: int) -> None:
        self._held -= deliveries

    @property
    def wait_seconds(self) -> float:
        """Until one may go."""
        return max(0.0, (1.0 - self._held) / self._rate)
