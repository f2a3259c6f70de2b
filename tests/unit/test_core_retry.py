"""The retry schedule: jitter, growth, cap, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.retry import Exhausted, RetryIn, RetryPolicy, backoff_cap_seconds, decide_retry

POLICY = RetryPolicy(
    first_delay_seconds=10, factor=3, max_delay_seconds=21_600, max_attempts=20, max_age_seconds=432_000
)


def decide(policy=POLICY, *, attempt=1, age_seconds=0.0, retry_after_seconds=None, drawn=0.5, unauthorized_before=None):
    return decide_retry(
        policy,
        attempt=attempt,
        age_seconds=age_seconds,
        retry_after_seconds=retry_after_seconds,
        draw=lambda: drawn,
        unauthorized_before=unauthorized_before,
    )


def test_the_cap_grows_by_the_factor_up_to_the_limit():
    assert [backoff_cap_seconds(POLICY, n) for n in (1, 2, 3)] == [10, 30, 90]
    assert backoff_cap_seconds(POLICY, 9) == 21_600
    assert backoff_cap_seconds(POLICY, 1_000_000) == 21_600


def test_full_jitter_draws_from_nothing_to_the_cap():
    assert decide(drawn=0.0) == RetryIn(0.0)
    assert decide(attempt=2, drawn=0.5) == RetryIn(15.0)


def test_retry_after_is_a_floor_and_not_a_cap():
    assert decide(retry_after_seconds=60.0) == RetryIn(60.0)
    assert decide(attempt=4, drawn=0.9, retry_after_seconds=60.0) == RetryIn(0.9 * 270)
    assert decide(retry_after_seconds=0.0) == RetryIn(5.0)


def test_the_last_attempt_and_the_age_end_it():
    assert isinstance(decide(attempt=19), RetryIn)
    assert decide(attempt=20) is Exhausted.ATTEMPTS
    assert decide(attempt=21) is Exhausted.ATTEMPTS
    assert decide(age_seconds=431_999.0) is Exhausted.AGE
    assert decide(age_seconds=431_990.0) == RetryIn(5.0)
    # A pause beyond the age ends it now: the attempt after it would come too late.
    assert decide(age_seconds=400_000.0, retry_after_seconds=86_400.0) is Exhausted.AGE


@given(
    attempt=st.integers(1, 1000),
    drawn=st.floats(0, 1, exclude_max=True),
    first=st.floats(0.01, 86_400),
    factor=st.floats(1, 100),
    cap=st.floats(0.01, 604_800),
    retry_after=st.none() | st.floats(0, 86_400),
)
def test_no_delay_leaves_its_bounds(*, attempt, drawn, first, factor, cap, retry_after):
    policy = RetryPolicy(first, factor, cap, max_attempts=1001, max_age_seconds=1e12)
    decision = decide(policy, attempt=attempt, retry_after_seconds=retry_after, drawn=drawn)
    assert isinstance(decision, RetryIn)
    floor = retry_after or 0.0
    assert floor <= decision.delay_seconds <= max(floor, cap)


LISTED = replace(POLICY, delays_seconds=(5.0, 300.0))


def test_a_list_of_delays_is_kept_with_a_little_spread_and_ends():
    assert decide(LISTED, attempt=1, drawn=0.0) == RetryIn(5.0)
    assert decide(LISTED, attempt=2, drawn=0.5) == RetryIn(pytest.approx(315.0))
    assert decide(LISTED, attempt=3) is Exhausted.ATTEMPTS
    assert decide(LISTED, attempt=1, drawn=0.0, retry_after_seconds=60.0) == RetryIn(60.0)
    assert decide(replace(LISTED, max_attempts=1), attempt=1) is Exhausted.ATTEMPTS
    assert decide(LISTED, attempt=2, age_seconds=431_900.0) is Exhausted.AGE


def test_rejected_authentication_has_a_schedule_and_a_count_of_its_own():
    assert decide(attempt=7, unauthorized_before=0, drawn=0.0) == RetryIn(60.0)
    assert decide(attempt=7, unauthorized_before=3, drawn=0.0) == RetryIn(21_600.0)
    assert decide(attempt=7, unauthorized_before=4) is Exhausted.UNAUTHORIZED
    assert decide(LISTED, attempt=2, unauthorized_before=0, drawn=0.0) == RetryIn(60.0)
    assert decide(attempt=20, unauthorized_before=0) is Exhausted.ATTEMPTS
    assert decide(replace(POLICY, unauthorized_delays_seconds=()), unauthorized_before=0) is Exhausted.UNAUTHORIZED
