"""A token bucket: in every interval of length t at most ``burst + rate * t`` starts.

Times are seconds of any clock that does not run backwards; the caller passes them in.
"""

from __future__ import annotations


class TokenBucket:
    """Starts of one destination as this worker sees them. The ledger's bucket, shared by all workers, has the last word."""

    __slots__ = ("_burst", "_rate_per_second", "_refilled_at", "_tokens")

    def __init__(self, rate_per_second: float, burst: int, *, now: float) -> None:
        _check(rate_per_second, burst)
        self._rate_per_second = rate_per_second
        self._burst = burst
        self._tokens = float(burst)
        self._refilled_at = now

    def configure(self, rate_per_second: float, burst: int, *, now: float) -> None:
        """Change the limits from now on; what was saved up beyond the new burst is lost."""
        _check(rate_per_second, burst)
        self._refill(now)
        self._rate_per_second = rate_per_second
        self._burst = burst
        self._tokens = min(self._tokens, float(burst))

    def take(self, now: float) -> bool:
        """Spend one token if there is one."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def give_back(self) -> None:
        """Return the token of a start that did not happen."""
        self._tokens = min(self._tokens + 1.0, float(self._burst))

    def wait_seconds(self, now: float, starts: int = 1) -> float:
        """Time until as many tokens as ``starts`` will have come, if nobody takes one before."""
        self._refill(now)
        return max(0.0, (starts - self._tokens) / self._rate_per_second)

    def starts_within(self, seconds: float, now: float) -> int:
        """How many starts the tokens allow from now until ``seconds`` later."""
        self._refill(now)
        return int(self._tokens + self._rate_per_second * seconds)

    def _refill(self, now: float) -> None:
        if now > self._refilled_at:
            grown = self._tokens + (now - self._refilled_at) * self._rate_per_second
            self._tokens = min(grown, float(self._burst))
            self._refilled_at = now


def _check(rate_per_second: float, burst: int) -> None:
    if rate_per_second <= 0 or burst < 1:
        raise ValueError(
            f"a token bucket needs a rate above 0 and a burst of at least 1, not {rate_per_second} and {burst}"
        )
