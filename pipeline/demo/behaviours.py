"""How a receiver answers: each behaviour is a pure decision about one request.

A behaviour knows nothing of sockets or clocks. It is told which request this is and gives an Answer; the receiver
carries it out. Behaviours are msgspec structs, so that a receiver's configuration file is simply them, encoded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

HANG_SECONDS = 120.0
"""A hanging request is dropped after this; the sender's time-out must be shorter."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One verified request, as a behaviour sees it. Both counts begin at 1."""

    delivery_id: str
    nth_of_delivery: int
    nth_of_destination: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What to do: wait, then respond with `status`, or drop the connection where it is None.

    `applies` says whether the receiver has taken the event over, whatever the sender gets to hear.
    """

    status: int | None
    applies: bool
    delay_seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


class Ok(msgspec.Struct, frozen=True, tag="ok"):
    """Applies every event at once."""

    settles: ClassVar[str | None] = "succeeded"

    def answer(self, arrival: Arrival) -> Answer:
        return Answer(200, applies=True)


class Slow(msgspec.Struct, frozen=True, tag="slow"):
    """Applies every event, and takes its time."""

    settles: ClassVar[str | None] = "succeeded"
    seconds: float = 0.3

    def answer(self, arrival: Arrival) -> Answer:
        return Answer(200, applies=True, delay_seconds=self.seconds)


class Throttling(msgspec.Struct, frozen=True, tag="throttling"):
    """Answers every `every`-th request with 429 and Retry-After."""

    settles: ClassVar[str | None] = "succeeded"
    every: int = 3
    retry_after_seconds: int = 1

    def answer(self, arrival: Arrival) -> Answer:
        if arrival.nth_of_destination % self.every == 0:
            return Answer(429, applies=False, headers={"Retry-After": str(self.retry_after_seconds)})
        return Answer(200, applies=True)


class Flaky(msgspec.Struct, frozen=True, tag="flaky"):
    """Fails half the time. The choice follows from seed, delivery and repeat, so a run can be had again."""

    settles: ClassVar[str | None] = "succeeded"
    seed: int = 0

    def answer(self, arrival: Arrival) -> Answer:
        choice = hashlib.sha256(f"{self.seed} {arrival.nth_of_delivery} {arrival.delivery_id}".encode()).digest()
        if choice[0] < 128:
            return Answer(503 if choice[1] < 128 else 500, applies=False)
        return Answer(200, applies=True)


class Hanging(msgspec.Struct, frozen=True, tag="hanging"):
    """Takes the request and never answers."""

    settles: ClassVar[str | None] = None

    def answer(self, arrival: Arrival) -> Answer:
        return Answer(None, applies=False, delay_seconds=HANG_SECONDS)


class Rejecting(msgspec.Struct, frozen=True, tag="rejecting"):
    """Refuses every event for good."""

    settles: ClassVar[str | None] = "dead"

    def answer(self, arrival: Arrival) -> Answer:
        return Answer(400, applies=False)


class AppliesThenDrops(msgspec.Struct, frozen=True, tag="applies_then_drops"):
    """Applies the event and drops the connection, the first time that it sees a delivery.

    This is the ambiguity that no sender can close: only the same identity again makes it harmless.
    """

    settles: ClassVar[str | None] = "succeeded"

    def answer(self, arrival: Arrival) -> Answer:
        return Answer(None if arrival.nth_of_delivery == 1 else 200, applies=True)


Behaviour = Ok | Slow | Throttling | Flaky | Hanging | Rejecting | AppliesThenDrops
"""`settles` of each: the terminal state that its deliveries must reach, None where they may wait for ever."""
