"""The demo's receivers: who they are, how they behave, how they are to be paced. Pure."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from pipeline.demo.behaviours import (
    AppliesThenDrops,
    Behaviour,
    Flaky,
    Hanging,
    Ok,
    Rejecting,
    Slow,
    Throttling,
)
from pipeline.demo.options import DESTINATIONS_MAX, DESTINATIONS_MIN
from pipeline.demo.wire import HOOKS_PATH

HEALTHY_NAMES = ("catalogue", "search", "partner:eu/7", "newsroom", "statistics", "mobile")
"""One of them with what a separator or a path would trip over."""
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One destination as the demo sets it up. Short delays: a demo is not a week."""

    destination_id: str
    behaviour: Behaviour
    secret: str
    share: float
    """Part of all events that goes to it, as a weight."""
    start_rate_per_second: float = 1000.0
    burst: int = 200
    concurrency: int = 32
    timeout_seconds: float = 5.0
    retry_first_delay_seconds: float = 0.2
    retry_factor: float = 2.0
    retry_max_delay_seconds: float = 2.0
    retry_max_attempts: int = 40
    """At half a chance each, one in 10^12 deliveries uses them up."""

    @property
    def path(self) -> str:
        """Where the receiver serves it."""
        return HOOKS_PATH + quote(self.destination_id, safe="")

    @property
    def is_healthy(self) -> bool:
        return isinstance(self.behaviour, Ok)


def make_targets(count: int, seed: int) -> list[Target]:
    """One of each misbehaving kind, the rest healthy; two of these take most of the traffic.

    Raises ValueError for a count outside DESTINATIONS_MIN..DESTINATIONS_MAX.
    """
    if not DESTINATIONS_MIN <= count <= DESTINATIONS_MAX:
        raise ValueError(f"the demo takes {DESTINATIONS_MIN} to {DESTINATIONS_MAX} destinations, not {count}")
    chance = random.Random(seed)  # noqa: S311 (secrets of a demo, which must be the same under the same seed)

    def secret() -> str:
        return "whsec_" + base64.b64encode(chance.randbytes(SECRET_BYTES)).decode()

    misbehaving = [
        Target(destination_id="throttling", behaviour=Throttling(), secret=secret(), share=4),
        Target(destination_id="flaky", behaviour=Flaky(seed=seed), secret=secret(), share=5),
        # Its deliveries wait: the next attempt is beyond the demo's end.
        Target(
            destination_id="hanging",
            behaviour=Hanging(),
            secret=secret(),
            share=1,
            concurrency=8,
            timeout_seconds=1.0,
            retry_first_delay_seconds=600.0,
            retry_max_delay_seconds=3600.0,
        ),
        Target(destination_id="rejecting", behaviour=Rejecting(), secret=secret(), share=3),
        Target(destination_id="drops", behaviour=AppliesThenDrops(), secret=secret(), share=4),
        Target(destination_id="slow", behaviour=Slow(), secret=secret(), share=2),
    ]
    healthy_count = count - len(misbehaving)
    names = [*HEALTHY_NAMES, *(f"partner-{number}" for number in range(len(HEALTHY_NAMES), healthy_count))]
    shares = [50.0, 20.0, *([11.0 / max(1, healthy_count - 2)] * healthy_count)]
    healthy = [
        Target(destination_id=name, behaviour=Ok(), secret=secret(), share=share, concurrency=64)
        for name, share in zip(names[:healthy_count], shares, strict=False)
    ]
    return healthy + misbehaving


def subscribers(targets: Sequence[Target]) -> list[str]:
    """Who gets the events that name no destination: the first healthy one, and the flaky one."""
    return [targets[0].destination_id, "flaky"]
