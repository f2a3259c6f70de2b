"""Counts of durations by size, for whoever shows them. Written by one thread, read by others."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """Observations in buckets with these upper bounds, in seconds, and one for what is above the last."""

    def __init__(self, *bounds: float) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, observations up to it), the last one ``+Inf``: as Prometheus counts them."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
