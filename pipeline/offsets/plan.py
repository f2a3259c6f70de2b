"""A plan: what is to be moved, how far, and what that passes over or repeats. Pure.

Everything that apply decides on is in the plan or read anew from Kafka; nothing is guessed in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from pipeline.offsets.group_standing import GroupStanding
from pipeline.offsets.places import NO_MESSAGES, Bounds, MessageCount, Place, Stretch
from pipeline.offsets.targets import Target, wanted_offset

PLAN_FORMAT = "outrider offsets plan 1"
NAMED_MAX = 5
"""Partitions that a refusal names; further ones are counted."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a plan."""

    topic: str
    partition: int
    before: int | None
    """Committed when it was planned; None: nothing."""
    requested: int
    target: int
    """Requested, within the log's bounds."""
    delta: int | None
    is_clamped: bool
    read_from: int
    """Where the group would go on without the move. What lies between here and the target is affected."""
    messages: MessageCount
    skips_ahead: bool
    """It passes over messages that the group has not read."""
    log_start: int
    log_end: int
    note: str | None = None

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition)

    @property
    def affected(self) -> Stretch:
        """The offsets that are read again, or never."""
        return Stretch(min(self.read_from, self.target), max(self.read_from, self.target))

    @property
    def is_change(self) -> bool:
        return self.before != self.target


class LedgerOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger will do about a move of the delivery group. Counts are of messages.

    Read again, a message does something only where it is its delivery's current dispatch and no worker has claimed it.
    Passed over, exactly those are what the reconciler finds and dispatches anew.
    """

    again_stale: MessageCount
    """Read again, and nothing comes of it."""
    again_current: MessageCount
    """Read again, and delivered by that."""
    skipped_stale: MessageCount
    """Passed over, and nothing is missed."""
    skipped_current: MessageCount
    """Passed over; the reconciler finds them."""
    found_until: datetime | None
    """When the last of these counts as lost."""
    broken: int = 0
    """Messages among them that are no dispatches, or of deliveries that the ledger does not know."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `offsets plan` writes and `offsets apply` takes."""

    format: str
    cluster_id: str
    group: str
    group_state: str
    members: int
    target: str
    operator: str
    reason: str
    planned_at: datetime
    moves: tuple[Move, ...]
    ledger: LedgerOutlook | None = None

    @property
    def rewound(self) -> MessageCount:
        return sum((m.messages for m in self.moves if m.target < m.read_from), NO_MESSAGES)

    @property
    def skipped(self) -> MessageCount:
        return sum((m.messages for m in self.moves if m.skips_ahead), NO_MESSAGES)


def plan_moves(
    target: Target,
    places: Sequence[Place],
    *,
    committed: Mapping[Place, int],
    bounds: Mapping[Place, Bounds],
    at_time: Mapping[Place, int | None],
) -> tuple[Move, ...]:
    """One move for each place, with the span as bound of its messages. Raises OffsetsError."""
    is_fresh = not committed
    moves = []
    for place in places:
        before = committed.get(place)
        wanted = wanted_offset(target, place, before=before, bounds=bounds[place], at_time=at_time.get(place))
        moves.append(
            move_to(place, wanted.offset, before=before, bounds=bounds[place], is_fresh=is_fresh, note=wanted.note)
        )
    return tuple(moves)


def move_to(
    place: Place, requested: int, *, before: int | None, bounds: Bounds, is_fresh: bool, note: str | None = None
) -> Move:
    """A move with nothing counted yet.

    A partition without a committed offset counts as unread from its start, because that is what might be lost. Only a
    group without any commit (`is_fresh`) skips nothing: to choose where it begins is what seeding is for.
    """
    target = bounds.nearest(requested)
    never_read = target if is_fresh else bounds.start
    read_from = never_read if before is None else bounds.nearest(before)
    notes = [note] if note else []
    if before is None:
        notes.append("seeded: had no committed offset")
    elif before < bounds.start:
        notes.append(f"offsets {before} to {bounds.start - 1} are gone: retention took them unread")
    elif before > bounds.end:
        notes.append(f"the committed offset lay beyond the log's end {bounds.end}")
    return _move(
        place,
        before=before,
        requested=requested,
        target=target,
        read_from=read_from,
        messages=MessageCount(0, abs(target - read_from)),
        bounds=(bounds.start, bounds.end),
        note="; ".join(notes) or None,
    )


def with_count(move: Move, messages: MessageCount) -> Move:
    """The same move, with its messages counted."""
    return _move(
        move.place,
        before=move.before,
        requested=move.requested,
        target=move.target,
        read_from=move.read_from,
        messages=messages,
        bounds=(move.log_start, move.log_end),
        note=move.note,
    )


def is_consistent(plan: Plan) -> bool:
    """Whether what follows from other fields still does: a plan that was edited by hand is made anew, not applied."""
    places = [move.place for move in plan.moves]
    return len(set(places)) == len(places) and all(
        move == with_count(move, move.messages)
        and move.target == _log_of(move).nearest(move.requested)
        and move.read_from
        in ((move.log_start, move.target) if move.before is None else (_log_of(move).nearest(move.before),))
        and 0 <= move.messages.at_least <= move.messages.at_most <= move.affected.span
        for move in plan.moves
    )


def refusals(
    plan: Plan,
    *,
    cluster_id: str,
    standing: GroupStanding,
    committed: Mapping[Place, int],
    bounds: Mapping[Place, Bounds],
    allow_skip: bool,
) -> list[str]:
    """Why the plan must not be applied to what is there now; empty where it may."""
    if cluster_id != plan.cluster_id:
        return [f"the plan is for cluster {plan.cluster_id}, and this is {cluster_id}"]
    reasons = []
    if standing.is_active:
        reasons.append(standing.why_active)
    changed = [
        f"{move.place}: {_or_none(move.before)} was planned, {_or_none(committed.get(move.place))} is committed"
        for move in plan.moves
        if committed.get(move.place) != move.before
    ]
    if changed:
        reasons.append(f"the group has moved since the plan ({_some(changed)}): plan again")
    outside = [
        f"{move.place}: {move.target}"
        for move in plan.moves
        if move.place not in bounds or bounds[move.place].nearest(move.target) != move.target
    ]
    if outside:
        reasons.append(f"targets are no longer in the log ({_some(outside)}): plan again")
    skipping = [f"{move.place}: {move.read_from} to {move.target}" for move in plan.moves if move.skips_ahead]
    if skipping and not allow_skip:
        reasons.append(
            f"it skips {plan.skipped} messages that the group has not read ({_some(skipping)}): "
            "say --allow-skip if that is meant"
        )
    return reasons


def _log_of(move: Move) -> Bounds:
    return Bounds(move.log_start, move.log_end, move.log_end)


def _move(
    place: Place,
    *,
    before: int | None,
    requested: int,
    target: int,
    read_from: int,
    messages: MessageCount,
    bounds: tuple[int, int],
    note: str | None,
) -> Move:
    return Move(
        topic=place.topic,
        partition=place.partition,
        before=before,
        requested=requested,
        target=target,
        delta=None if before is None else target - before,
        is_clamped=requested != target,
        read_from=read_from,
        messages=messages,
        skips_ahead=target > read_from and messages.at_most > 0,
        log_start=bounds[0],
        log_end=bounds[1],
        note=note,
    )


def _or_none(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


def _some(items: Sequence[str]) -> str:
    more = len(items) - NAMED_MAX
    return ", ".join(items[:NAMED_MAX]) + (f", and {more} more" if more > 0 else "")
