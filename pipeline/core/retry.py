"""When a delivery that failed is tried again, or that it is not.

Full jitter: the delay is drawn evenly from [0, cap of this attempt], where the cap grows by a factor from the first delay
up to a limit, so that receivers that failed together are not all called again together. What ``Retry-After`` asks for is
a floor under the draw. The destination's pace spreads those that the floor brings to the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Exhausted(StrEnum):
    """Why there is no further attempt."""

    ATTEMPTS = "attempts_exhausted"
    AGE = "age_exhausted"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A destination's schedule; seconds, and counts of attempts."""

    first_delay_seconds: float
    factor: float
    max_delay_seconds: float
    max_attempts: int
    max_age_seconds: float


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
) -> RetryIn | Exhausted:
    """What follows a failed attempt that may be tried again.

    ``attempt`` is the number of the one that failed, ``age_seconds`` the delivery's age now, ``retry_after_seconds`` what the
    receiver asked for (bounded already), ``draw`` gives an even number in [0, 1).
    """
    if attempt >= policy.max_attempts:
        return Exhausted.ATTEMPTS
    jittered = draw() * backoff_cap_seconds(policy, attempt)
    delay = jittered if retry_after_seconds is None else max(jittered, retry_after_seconds)
    if age_seconds + delay > policy.max_age_seconds:
        return Exhausted.AGE
    return RetryIn(delay)
