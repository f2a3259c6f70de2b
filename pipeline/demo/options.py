"""What the person at the keyboard may choose."""

from __future__ import annotations

from dataclasses import dataclass

EVENTS_MIN = 50
EVENTS_MAX = 100_000
DESTINATIONS_MIN = 7
"""One of each misbehaving kind, and a healthy one."""
DESTINATIONS_MAX = 100
RATE_MIN = 60.0
RATE_MAX = 400.0
TRAFFIC_SECONDS = 20.0
"""Admissions are spread over about this, within the rates above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Numbers are within the limits above; the same seed plans the same events."""

    events: int = 2000
    destinations: int = 12
    seed: int = 1

    @property
    def events_per_second(self) -> float:
        """How fast the application admits."""
        return min(RATE_MAX, max(RATE_MIN, self.events / TRAFFIC_SECONDS))
