"""How single destinations stand in this worker, for ``/metrics``: the busiest by name, up to a limit, the rest as one.

Made when it is asked for, so that a destination that is gone leaves no series behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class DestinationStanding:
    """One destination at the moment of asking."""

    destination_id: str
    in_flight: int
    waiting: int
    rate_share: float
    """The part of its rate that is in force."""
    is_open: bool
    """Its breaker lets nothing but a probe pass."""
    is_throttled: bool
    """It asked to be left alone for a while."""


@contextmanager
def registered(metrics: Collector) -> Iterator[None]:
    """Shown while the block runs."""
    REGISTRY.register(metrics)
    try:
        yield
    finally:
        REGISTRY.unregister(metrics)


class DestinationMetrics(Collector):
    """``outrider_worker_destination_*``. At most ``named_max`` destinations are named."""

    def __init__(self, standings: Callable[[], Sequence[DestinationStanding]], *, named_max: int) -> None:
        self._standings = standings
        self._named_max = named_max

    def collect(self) -> Iterator[Metric]:
        # Those that are not well are what one looks for, then those with most at hand.
        standings = sorted(
            self._standings(),
            key=lambda s: (not (s.is_open or s.is_throttled), -(s.in_flight + s.waiting), s.destination_id),
        )
        named, others = standings[: self._named_max], standings[self._named_max :]
        families: tuple[tuple[str, str, Callable[[DestinationStanding], float]], ...] = (
            ("in_flight", "Starts that have not ended.", lambda s: s.in_flight),
            ("waiting", "Deliveries that wait in the lane.", lambda s: s.waiting),
            ("breaker_open", "1 while the breaker is open; of the others, how many.", lambda s: s.is_open),
            ("throttled", "1 while its Retry-After lasts; of the others, how many.", lambda s: s.is_throttled),
        )
        for name, meaning, value in families:
            family = GaugeMetricFamily(f"outrider_worker_destination_{name}", meaning, labels=["destination"])
            for standing in named:
                family.add_metric([standing.destination_id], float(value(standing)))
            if others:
                family.add_metric([OTHERS], float(sum(value(standing) for standing in others)))
            yield family
        share = GaugeMetricFamily(
            "outrider_worker_destination_rate_share",
            "The part of the start rate that is in force; of the others, the least.",
            labels=["destination"],
        )
        for standing in named:
            share.add_metric([standing.destination_id], standing.rate_share)
        if others:
            share.add_metric([OTHERS], min(standing.rate_share for standing in others))
        yield share
