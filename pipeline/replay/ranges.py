"""Which stretch of each partition is meant: by time, by offsets, or all; and what retention has taken of it. Pure, but for
the questions to Kafka in `resolve`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Bounds, Place
from pipeline.replay.errors import ReplayError
from pipeline.replay.plan import Range

_OFFSETS = re.compile(r"([0-9]{1,9}):([0-9]{1,18})?-([0-9]{1,18})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ByTime:
    """Messages from `since` to before `until`, by the topic's clock. None: from the beginning, to the end."""

    since: datetime | None
    until: datetime | None

    def __str__(self) -> str:
        words = [
            f"{word} {moment.astimezone(UTC).isoformat()}"
            for word, moment in (("since", self.since), ("until", self.until))
            if moment is not None
        ]
        return " ".join(words) or "from beginning to end"


@dataclass(frozen=True, slots=True)
class ByOffsets:
    """Offsets by partition, the last not included; None: the log's own bound."""

    stretches: Mapping[int, tuple[int | None, int | None]]

    def __str__(self) -> str:
        return "offsets " + " ".join(
            f"{number}:{'' if begin is None else begin}-{'' if end is None else end}"
            for number, (begin, end) in sorted(self.stretches.items())
        )


Wanted = ByTime | ByOffsets


def parse_offsets(texts: Sequence[str]) -> ByOffsets:
    """``0:100-200``, ``0:100-``, ``0:-200``, ``0:-``. Raises ReplayError."""
    stretches: dict[int, tuple[int | None, int | None]] = {}
    for text in texts:
        match = _OFFSETS.fullmatch(text)
        if match is None:
            raise ReplayError(f"{text!r} is no range: write PARTITION:FROM-TO, as 0:1000-2000 or 0:1000-")
        begin, end = (None if part is None else int(part) for part in match.groups()[1:])
        if begin is not None and end is not None and begin >= end:
            raise ReplayError(f"{text!r} is empty: the second offset is the first that is left out")
        if int(match[1]) in stretches:
            raise ReplayError(f"partition {match[1]} has two ranges: plan them one after the other")
        stretches[int(match[1])] = (begin, end)
    return ByOffsets(stretches)


def resolve(groups: KafkaGroups, topic: str, wanted: Wanted) -> tuple[Range, ...]:
    """Ask Kafka where that lies. Ends where a read_committed reader gets to now. Raises OffsetsError or ReplayError."""
    places = groups.partitions([topic])
    if isinstance(wanted, ByOffsets):
        if missing := sorted(set(wanted.stretches) - {place.partition for place in places}):
            raise ReplayError(f"{topic} has no partition {missing[0]}")
        places = [place for place in places if place.partition in wanted.stretches]
    bounds = groups.bounds(places)
    if isinstance(wanted, ByOffsets):
        return tuple(by_offsets(place, bounds[place], *wanted.stretches[place.partition]) for place in places)
    since = {} if wanted.since is None else groups.offsets_at(places, wanted.since)
    until = {} if wanted.until is None else groups.offsets_at(places, wanted.until)
    return tuple(
        by_time(place, bounds[place], wanted, since=since.get(place), until=until.get(place)) for place in places
    )


def by_offsets(place: Place, bounds: Bounds, begin: int | None, end: int | None) -> Range:
    asked_begin = bounds.start if begin is None else begin
    asked_end = bounds.stable_end if end is None else end
    return _within(place, bounds, asked_begin, asked_end)


def by_time(place: Place, bounds: Bounds, wanted: ByTime, *, since: int | None, until: int | None) -> Range:
    """`since` and `until`: the first message that is not older; None where there is none, or nothing was asked."""
    begin = bounds.start if wanted.since is None else bounds.stable_end if since is None else since
    end = bounds.stable_end if until is None else until
    found = _within(place, bounds, begin, max(begin, end))
    if bounds.start > 0 and begin == bounds.start and (wanted.since is None or since == bounds.start):
        # The log's first message is in the range, so older ones may have been too.
        return Range(
            topic=found.topic,
            partition=found.partition,
            begin=found.begin,
            end=found.end,
            note=f"retention has removed what lay before offset {bounds.start}, and with it perhaps a part of the range",
        )
    return found


def _within(place: Place, bounds: Bounds, begin: int, end: int) -> Range:
    removed = max(0, min(bounds.start, end) - begin)
    first = min(max(begin, bounds.start), bounds.stable_end)
    notes = []
    if removed:
        notes.append(f"retention has removed the first {removed} offsets of the range")
    if end > bounds.stable_end:
        notes.append(f"it ends at {bounds.stable_end}, where the log does")
    return Range(
        topic=place.topic,
        partition=place.partition,
        begin=first,
        end=max(first, min(end, bounds.stable_end)),
        removed=removed,
        note="; ".join(notes) or None,
    )
