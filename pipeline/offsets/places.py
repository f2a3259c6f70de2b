"""Partitions, what lies in them, and how many messages a stretch of offsets holds. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The log of a partition. Offsets from `start` on are there, and `end` is the next one to be written.

    A reader at read_committed gets no further than `stable_end`, where the oldest open transaction begins.
    """

    start: int
    end: int
    stable_end: int

    def nearest(self, offset: int) -> int:
        """The offset itself, or the bound that it lies beyond."""
        return min(max(offset, self.start), self.end)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets from `start` to before `end`."""

    start: int
    end: int

    @property
    def span(self) -> int:
        return max(0, self.end - self.start)


class MessageCount(msgspec.Struct, frozen=True):
    """Messages in a stretch. Offsets alone give only an upper bound: transaction markers, aborted records and compaction
    leave offsets without a message."""

    at_least: int
    at_most: int

    @property
    def is_exact(self) -> bool:
        return self.at_least == self.at_most

    def __add__(self, other: MessageCount) -> MessageCount:
        return MessageCount(self.at_least + other.at_least, self.at_most + other.at_most)

    def __str__(self) -> str:
        if self.is_exact:
            return str(self.at_most)
        return f"at most {self.at_most}" if self.at_least == 0 else f"{self.at_least} to {self.at_most}"


NO_MESSAGES = MessageCount(0, 0)


class PartitionOffset(msgspec.Struct, frozen=True):
    """Where a group stands in a partition, as run rows keep it; None: it had committed nothing."""

    topic: str
    partition: int
    offset: int | None
