"""Where to: what an operator asks for, and which offset that is in one partition. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.places import Bounds, Place

OFFSET_MAX = 2**63 - 1
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
_SHORT_DURATION = re.compile(r"(\d+)(d|h|m|s)", re.ASCII)
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


@dataclass(frozen=True, slots=True)
class ToEarliest:
    def __str__(self) -> str:
        return "to earliest"


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The end of what is committed. A transaction that is still open is not passed over, as the log's end would."""

    def __str__(self) -> str:
        return "to latest"


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first message that is not older."""

    at: datetime

    def __str__(self) -> str:
        return f"to time {self.at.astimezone(UTC).isoformat()}"


@dataclass(frozen=True, slots=True)
class ToOffset:
    offset: int

    def __str__(self) -> str:
        return f"to offset {self.offset}"


@dataclass(frozen=True, slots=True)
class ShiftBy:
    offsets: int

    def __str__(self) -> str:
        return f"shift by {self.offsets:+d}"


@dataclass(frozen=True, slots=True)
class ToListed:
    """An offset of its own for each partition."""

    offsets: Mapping[Place, int]
    source: str

    def __str__(self) -> str:
        return f"from {self.source}"


Target = ToEarliest | ToLatest | ToTime | ToOffset | ShiftBy | ToListed


@dataclass(frozen=True, slots=True)
class Wanted:
    """An offset before it is brought into the log's bounds."""

    offset: int
    note: str | None = None


def wanted_offset(target: Target, place: Place, *, before: int | None, bounds: Bounds, at_time: int | None) -> Wanted:
    """What the target means in this partition; `at_time` is the answer to ToTime, None where nothing is as new.

    Raises OffsetsError where it means nothing: a shift without a committed offset, a file without the partition.
    """
    note: str | None = None
    match target:
        case ToEarliest():
            offset = bounds.start
        case ToLatest():
            offset = bounds.stable_end
        case ToTime():
            offset = bounds.stable_end if at_time is None else at_time
            note = "nothing is as new as that: this is the end" if at_time is None else None
        case ToOffset(fixed):
            offset = fixed
        case ShiftBy(distance):
            if before is None:
                raise OffsetsError(f"{place} has no committed offset to shift: give a time, an offset, or an end")
            offset = before + distance
        case ToListed(listed, source):
            if place not in listed:
                raise OffsetsError(f"{source} has no offset for {place}")
            offset = listed[place]
    return Wanted(offset, note)


def parse_moment(text: str) -> datetime:
    """An ISO 8601 moment with its offset from UTC, so that nobody's local time is guessed. Raises OffsetsError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OffsetsError(f"{text!r} is no moment: write it like 2026-11-30T18:00:00Z") from None
    if moment.tzinfo is None:
        raise OffsetsError(f"{text!r} does not say in which time zone: add Z for UTC, or an offset like +01:00")
    return moment


def parse_duration(text: str) -> timedelta:
    """ISO 8601 as Kafka's own tool takes it (P1DT6H, PT30M), or short (2d, 6h, 30m, 45s). Raises OffsetsError."""
    try:
        if short := _SHORT_DURATION.fullmatch(text):
            return timedelta(**{_UNITS[short[2]]: int(short[1])})
        iso = _ISO_DURATION.fullmatch(text)
        if iso and any(iso.groups()):
            days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        pass
    raise OffsetsError(f"{text!r} is no duration: write it like 6h, 30m, 2d, or PT6H")


def parse_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    """`topic`, or `topic:0,2` for some of its partitions (None: all). Raises OffsetsError."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", numbers)):
        raise OffsetsError(f"{text!r} is no scope: write TOPIC, or TOPIC:0,2 for some of its partitions")
    return topic, tuple(sorted({int(number) for number in numbers.split(",")})) if colon else None
