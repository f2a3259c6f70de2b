"""Up to where the witnesses can be compared, so that what is on its way is not called missing.

The ledger is looked at first. Whatever it showed then had committed before a place in PostgreSQL's log; once the
connector's slot has confirmed that place, all of it is in Kafka, and lies before the ends that the topics have then. So a
row without a message is missing where the slot is that far, and on its way where it is not. In the same way the audit
must hold the messages that its group's committed offsets have passed, and no others yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from pipeline.ledger.report_tables import Moment, ReadPlace, is_settled
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place
from pipeline.report.topic_reading import PlaceSeen

POLL_SECONDS = 0.2
READ_ON_SECONDS = 0.5
CLOCK_MARGIN = timedelta(hours=1)
"""Between the clocks of the database and of the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """``is_settled``: everything that the ledger showed at ``taken_at`` had reached the topics when they were read."""

    taken_at: datetime
    ledger_lsn: str
    confirmed_lsn: str | None
    """By the slot that is least far; None where one is missing."""
    is_settled: bool
    places: list[ReadPlace]

    @property
    def kept_since(self) -> datetime | None:
        """Messages of what was dispatched earlier may be gone by retention. None: none is."""
        return max((p.kept_since for p in self.places if p.kept_since is not None), default=None)


@dataclass(frozen=True, slots=True)
class Settling:
    """How long to wait for those that are behind."""

    slots: Sequence[str]
    seconds: float
    say: Callable[[str], None] = lambda line: None


def wait_until_settled(
    session: psycopg.Connection, moment: Moment, settling: Settling, read_on: Callable[[], bool]
) -> tuple[bool, str | None]:
    """Whether the topics were read when the slots had got as far as the moment, and how far the last slot is.

    ``read_on`` reads the topics to their ends, and says whether they hold all that the ledger showed: then it does not
    matter what a slot has confirmed, which an idle one does only every few seconds.
    """
    deadline = time.monotonic() + settling.seconds
    is_told = False
    while True:
        answer, confirmed = is_settled(session, settling.slots, moment.lsn)
        if read_on():
            return True, confirmed
        if answer or answer is None or time.monotonic() >= deadline:
            return bool(answer), confirmed
        if not is_told:
            settling.say(f"waiting for the connector to pass {moment.lsn}, at most {settling.seconds:g} s")
            is_told = True
        time.sleep(READ_ON_SECONDS)


def wait_for_audit(
    groups: KafkaGroups, group: str, seen: Mapping[Place, PlaceSeen], settling: Settling
) -> dict[Place, int]:
    """The audit's committed offsets, once they have passed what was read; or those it has when the time is over.

    An audit that never committed anything, and does not run, is not waited for.
    """
    deadline = time.monotonic() + settling.seconds
    is_told = False
    while True:
        committed = groups.committed(group, seen)
        behind = [
            place
            for place, at in seen.items()
            if at.last_offset is not None and committed.get(place, 0) <= at.last_offset
        ]
        is_there = bool(committed) or bool(groups.standing(group).members)
        if not behind or not is_there or time.monotonic() >= deadline:
            return {place: committed.get(place, 0) for place in seen}
        if not is_told:
            settling.say(f"waiting for {group} to read {len(behind)} partitions, at most {settling.seconds:g} s")
            is_told = True
        time.sleep(POLL_SECONDS)


def first_seen(
    groups: KafkaGroups, places: Collection[Place], since: datetime
) -> tuple[dict[Place, PlaceSeen], set[Place]]:
    """Where reading begins: at the first message that could be of a delivery admitted then; and partitions cut off there.

    A partition is cut off where its log no longer begins at 0, and reading begins with the first message that is left.
    """
    ordered = sorted(places)
    bounds = groups.bounds(ordered)
    asked = groups.offsets_at(ordered, since - CLOCK_MARGIN)
    seen, cut = {}, set()
    for place in ordered:
        found = asked[place]
        begin = bounds[place].stable_end if found is None else max(found, bounds[place].start)
        seen[place] = PlaceSeen(begin, begin)
        if bounds[place].start > 0 and begin <= bounds[place].start:
            cut.add(place)
    return seen, cut
