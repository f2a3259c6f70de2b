"""Durations counted by size, as Prometheus wants them."""

from __future__ import annotations

from connectors.histogram import Histogram


def test_each_bucket_counts_what_is_not_above_its_bound() -> None:
    histogram = Histogram(0.1, 1.0)
    for seconds in (0.05, 0.1, 0.5, 2.0):
        histogram.observe(seconds)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.sum_seconds == 2.65
