"""A plan: what a run would take from where, what it would do with it, and how long that takes. As a file, readable JSON
under a checksum, so that a run does what somebody has looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from pipeline.ledger.replay import Choice, Source
from pipeline.ledger.replay_plan import Count, Sampled
from pipeline.offsets.plan_file import decode_plan, read_bounded, write_once
from pipeline.replay.errors import ReplayError

PLAN_FORMAT: Final = "outrider replay plan 1"
BYTES_MAX: Final = 64 * 1024 * 1024


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one partition."""

    topic: str
    partition: int
    begin: int
    end: int
    """One past the last offset."""
    removed: int = 0
    """Offsets that were asked for, and that retention has taken."""
    note: str | None = None


class IdList(msgspec.Struct, frozen=True, kw_only=True):
    """A file of delivery ids; a run takes it only where it still has the same content."""

    path: str
    sha256: str
    ids: int
    """Each counted once."""
    unknown: int
    """Of no delivery in the ledger."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What reading the topics has found."""

    messages: int
    broken: int
    """No dispatches at all."""
    foreign: int
    """Dispatches of deliveries that are not in the ledger."""
    removed: int
    """Offsets of the ranges that retention has taken, as far as offsets tell."""


class AttemptIds(msgspec.Struct, frozen=True, kw_only=True):
    """Of a rebuild: attempts of the topic have higher numbers than the ledger has given out since it was restored."""

    given: int
    proven: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    cluster_id: str | None
    source: Source
    origin: str
    """The source in words."""
    ranges: tuple[Range, ...]
    until: datetime
    """By the database's clock: what is admitted or dies later is in no selection of the ledger."""
    choice: Choice
    id_list: IdList | None
    rate_per_second: float
    share: float
    """Of what a destination can start, that the run takes at most."""
    read: Read | None
    counts: tuple[Count, ...]
    sample: tuple[Sampled, ...]
    expected_seconds: float
    slowest_destination: str | None
    """Whose own rate, not the run's, decides how long it takes."""
    attempt_ids: AttemptIds | UnsetType = UNSET
    """Left out of the file where there is nothing to raise."""
    checksum: str = ""

    @property
    def replayed(self) -> int:
        return sum(count.deliveries for count in self.counts if is_act(count.verdict))

    @property
    def left(self) -> dict[str, int]:
        """Deliveries in the selection that stay as they are, by reason."""
        found: dict[str, int] = {}
        for count in self.counts:
            if not is_act(count.verdict):
                found[count.verdict] = found.get(count.verdict, 0) + count.deliveries
        return found


def is_act(verdict: str) -> bool:
    """Whether a run does something about such a delivery."""
    return verdict in ("replay", "advance") or verdict.startswith("rebuild_")


def expected_seconds(
    counts: Sequence[Count], rate_per_second: float, share: float, rates: Mapping[str, float]
) -> tuple[float, str | None]:
    """How long it takes, by the run's rate or by a destination's share of its own, and that destination. Pure."""
    by_destination: dict[str, int] = {}
    for count in counts:
        if count.verdict in ("replay", "rebuild_due"):
            by_destination[count.destination_id] = by_destination.get(count.destination_id, 0) + count.deliveries
    at_rate = sum(by_destination.values()) / rate_per_second
    slowest, longest = None, at_rate
    for destination_id, deliveries in by_destination.items():
        seconds = deliveries / (share * rates[destination_id]) if destination_id in rates else 0.0
        if seconds > longest:
            slowest, longest = destination_id, seconds
    return round(longest, 1), slowest


def sealed(plan: Plan) -> Plan:
    """With its checksum."""
    return msgspec.structs.replace(plan, checksum=_checksum(plan))


def write_plan(plan: Plan, path: Path) -> None:
    """Raises ReplayError; a file that is there already is left alone."""
    write_once(plan, path, ReplayError)


def read_plan(path: Path) -> Plan:
    """Raises ReplayError for a file that is none of ours, or was edited."""
    content = read_bounded(path, BYTES_MAX, ReplayError)
    try:
        return checked_plan(content)
    except ReplayError as error:
        raise ReplayError(f"{path} {error}") from None


def checked_plan(content: bytes) -> Plan:
    """Raises ReplayError."""
    plan = decode_plan(content, Plan, PLAN_FORMAT, ReplayError)
    if plan.checksum != _checksum(plan):
        raise ReplayError("was changed after it was planned: plan again")
    return plan


def _checksum(plan: Plan) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(plan, checksum=""))).hexdigest()
