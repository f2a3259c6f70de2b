"""The check of the limits finds exactly what looking at every window finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.start_log import worst_excess


@given(st.lists(st.floats(0, 20), min_size=1, max_size=30), st.floats(0.1, 10), st.integers(1, 5))
def test_the_worst_window_is_found(times, rate, burst):
    times = sorted(times)
    every = [
        last - first + 1 - burst - rate * (times[last] - times[first])
        for first in range(len(times))
        for last in range(first, len(times))
    ]
    assert worst_excess(times, rate_per_second=rate, burst=burst) == pytest.approx(max(every), abs=1e-6)
