"""When a delivery that failed is tried again, or that it is not.

Full jitter: the delay is drawn evenly from [0, cap of this attempt], where the cap grows by a factor from the first delay
up to a limit, so that receivers that failed together are not all called again together. A destination may have a list of
delays instead; they are kept, and up to LIST_SPREAD of each is added by the draw, for the same reason. What ``Retry-After``
asks for is a floor under both. The destination's pace spreads those that the floor brings to the same moment.

A receiver that rejects our authentication is not mended by asking often: retries after that follow a short list of long
delays, counted by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

LIST_SPREAD = 0.1
UNAUTHORIZED_DELAYS_SECONDS = (60.0, 600.0, 3_600.0, 21_600.0)


class Exhausted(StrEnum):
    """Why there is no further attempt."""

    ATTEMPTS = "attempts_exhausted"
    AGE = "age_exhausted"
    UNAUTHORIZED = "unauthorized_exhausted"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A destination's schedule; seconds, and counts of attempts."""

    first_delay_seconds: float
    factor: float
    max_delay_seconds: float
    max_attempts: int
    max_age_seconds: float
    delays_seconds: Sequence[float] | None = None
    """Instead of the first three: the delay after each attempt; after the last one there is no other."""
    unauthorized_delays_seconds: Sequence[float] = UNAUTHORIZED_DELAYS_SECONDS


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again after this many seconds."""

    delay_seconds: float


def backoff_cap_seconds(policy: RetryPolicy, attempt: int) -> float:
    """Greatest delay after the attempt with this number (from 1)."""
    try:
        grown = policy.first_delay_seconds * policy.factor ** (attempt - 1)
    except OverflowError:
        return policy.max_delay_seconds
    return min(grown, policy.max_delay_seconds)


def decide_retry(
    policy: RetryPolicy,
    *,
    attempt: int,
    age_seconds: float,
    retry_after_seconds: float | None,
    draw: Callable[[], float],
    unauthorized_before: int | None = None,
) -> RetryIn | Exhausted:
    """What follows a failed attempt that may be tried again.

    ``attempt`` is the number of the one that failed, ``age_seconds`` the delivery's age now, ``retry_after_seconds`` what the
    receiver asked for (bounded already), ``draw`` gives an even number in [0, 1). ``unauthorized_before``: given where the
    receiver has rejected our authentication, how often it had done so before.
    """
    if attempt >= policy.max_attempts:
        return Exhausted.ATTEMPTS
    if unauthorized_before is not None:
        drawn = _from_list(policy.unauthorized_delays_seconds, unauthorized_before, draw)
        if drawn is None:
            return Exhausted.UNAUTHORIZED
    elif policy.delays_seconds is not None:
        drawn = _from_list(policy.delays_seconds, attempt - 1, draw)
        if drawn is None:
            return Exhausted.ATTEMPTS
    else:
        drawn = draw() * backoff_cap_seconds(policy, attempt)
    delay = drawn if retry_after_seconds is None else max(drawn, retry_after_seconds)
    if age_seconds + delay > policy.max_age_seconds:
        return Exhausted.AGE
    return RetryIn(delay)


def _from_list(delays_seconds: Sequence[float], place: int, draw: Callable[[], float]) -> float | None:
    if place >= len(delays_seconds):
        return None
    return delays_seconds[place] * (1 + LIST_SPREAD * draw())
