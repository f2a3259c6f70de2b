"""The token bucket in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.pacing import TokenBucket


@given(
    rate=st.floats(0.01, 1000),
    burst=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_no_interval_has_more_starts_than_burst_and_rate_allow(rate, burst, gaps):
    bucket, now, starts = TokenBucket(rate, burst, now=0.0), 0.0, []
    for gap in gaps:
        now += gap
        while bucket.take(now):
            starts.append(now)
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            allowed = burst + rate * (starts[last] - starts[first])
            assert last - first + 1 <= allowed + 1e-6


def test_a_full_bucket_lets_the_burst_pass_and_then_the_rate():
    bucket = TokenBucket(2.0, 3, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_seconds(0.0) == 0.5
    assert bucket.wait_seconds(0.0, starts=4) == 2.0
    assert not bucket.take(0.25)
    assert bucket.take(0.5)


def test_starts_within_counts_tokens_and_those_that_come():
    bucket = TokenBucket(10.0, 5, now=0.0)
    assert bucket.starts_within(1.0, 0.0) == 15
    while bucket.take(0.0):
        pass
    assert bucket.starts_within(1.0, 0.0) == 10
    assert bucket.starts_within(0.05, 0.0) == 0


def test_a_clock_that_stands_still_or_runs_back_gives_nothing():
    bucket = TokenBucket(1000.0, 1, now=10.0)
    assert bucket.take(10.0)
    assert not bucket.take(10.0)
    assert not bucket.take(5.0)


def test_new_limits_hold_at_once():
    bucket = TokenBucket(1.0, 100, now=0.0)
    bucket.configure(1.0, 2, now=0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [True, True, False]
    bucket.configure(100.0, 2, now=0.0)
    assert bucket.wait_seconds(0.0) == pytest.approx(0.01)


def test_a_token_that_is_given_back_is_there_again_but_never_above_the_burst():
    bucket = TokenBucket(0.01, 1, now=0.0)
    assert bucket.take(0.0)
    bucket.give_back()
    bucket.give_back()
    assert bucket.take(0.0)
    assert not bucket.take(0.0)


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_limits_that_would_never_start_anything_are_refused(rate, burst):
    with pytest.raises(ValueError, match="needs a rate above 0"):
        TokenBucket(rate, burst, now=0.0)
