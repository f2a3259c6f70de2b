"""Applying a plan, and undoing a run: checked, recorded, altered, read back.

The run is committed before anything changes, with what was found, so that it can be undone even when this process is
killed in the middle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import msgspec
import psycopg

from pipeline.ledger.operator import Act
from pipeline.ledger.runs import BusyError, Run, alone, close_run, open_run
from pipeline.offsets.errors import OffsetsError, RefusedError
from pipeline.offsets.group_standing import UNKNOWN, GroupStanding
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import PartitionOffset, Place
from pipeline.offsets.plan import Plan, refusals

APPLY = "offsets.apply"
UNDO = "offsets.undo"
POLL_SECONDS = 0.5
DIFFERENCES_NAMED_MAX = 5

Positions = Mapping[Place, int | None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """What is waited for before anything changes."""

    wait_seconds: float
    """For members to be gone: a killed one counts until its session time-out."""
    watch_seconds: float
    """For commits by consumers that use assign(), which are in no list of members. Clients commit every 5 s by default;
    one that reads nothing meanwhile commits nothing, and is not noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    run_id: UUID
    group: str
    before: tuple[PartitionOffset, ...]
    after: tuple[PartitionOffset, ...]
    left: tuple[PartitionOffset, ...] = ()
    """Of an undo: partitions that had nothing committed before, and keep what they have now."""


def apply_plan(
    groups: KafkaGroups,
    ledger: psycopg.Connection,
    plan: Plan,
    act: Act,
    care: Care,
    *,
    allow_skip: bool,
    say: Say = lambda line: None,
) -> Applied:
    """Raises RefusedError where nothing was changed, OffsetsError where the run says how far it came."""
    with _alone(ledger, plan.group):
        cluster_id = groups.cluster_id()
        standing = _settled(groups, plan.group, care, say)
        places = groups.existing(move.place for move in plan.moves)
        committed = groups.committed(plan.group, places)
        reasons = refusals(
            plan,
            cluster_id=cluster_id,
            standing=standing,
            committed=committed,
            bounds=groups.bounds(sorted(places)),
            allow_skip=allow_skip,
        )
        if reasons:
            raise RefusedError(reasons)
        return _change(
            groups,
            ledger,
            plan.group,
            act,
            kind=APPLY,
            parameters={
                "group": plan.group,
                "cluster_id": cluster_id,
                "target": plan.target,
                "planned_by": plan.operator,
                "planned_at": plan.planned_at.isoformat(),
                "allow_skip": allow_skip,
            },
            before={move.place: move.before for move in plan.moves},
            after={move.place: move.target for move in plan.moves},
            counts={"rewound": msgspec.to_builtins(plan.rewound), "skipped": msgspec.to_builtins(plan.skipped)},
        )


def undo_run(
    groups: KafkaGroups,
    ledger: psycopg.Connection,
    run: Run,
    act: Act,
    care: Care,
    *,
    even_if_moved: bool,
    say: Say = lambda line: None,
) -> Applied:
    """Put every partition of the run back to where it was before, or as near as its log still reaches.

    Raises RefusedError or OffsetsError.

    A partition that had nothing committed is unset by deleting the group, where the group has nothing else: clients have
    no other call for it. Else it keeps its offset, and the answer says so. Forward moves need no leave here: the
    group stood there before.
    """
    if run.kind not in (APPLY, UNDO):
        raise RefusedError([f"run {run.run_id} is of kind {run.kind}: only runs that moved offsets are undone here"])
    group, cluster_id = str(run.parameters["group"]), groups.cluster_id()
    if run.parameters["cluster_id"] != cluster_id:
        raise RefusedError([f"the run was on cluster {run.parameters['cluster_id']}, and this is {cluster_id}"])
    to: Positions = _positions(run.before)
    left_by_run = _positions(run.after)
    with _alone(ledger, group):
        standing = _settled(groups, group, care, say)
        committed = groups.committed(group, groups.existing(to))
        reasons = undo_refusals(
            standing, to=to, left_by_run=left_by_run, committed=committed, even_if_moved=even_if_moved
        )
        if gone := sorted(set(to) - groups.existing(to)):
            reasons.append(f"{gone[0]} does not exist any more")
        if reasons:
            raise RefusedError(reasons)
        found: Positions = {place: committed.get(place) for place in to}
        to = _within_logs(groups, to, say)
        unset = {place for place, offset in to.items() if offset is None and place in committed}
        return _change(
            groups,
            ledger,
            group,
            act,
            kind=UNDO,
            parameters={
                "group": group,
                "cluster_id": cluster_id,
                "undoes": str(run.run_id),
                "even_if_moved": even_if_moved,
            },
            before=found,
            after=to if committed.keys() <= unset else {**to, **{place: committed[place] for place in unset}},
            counts={},
            left=() if committed.keys() <= unset else unset,
        )


def undo_refusals(
    standing: GroupStanding,
    *,
    to: Positions,
    left_by_run: Positions,
    committed: Mapping[Place, int],
    even_if_moved: bool,
) -> list[str]:
    """Why a run must not be undone now. Pure."""
    reasons = [standing.why_active] if standing.is_active else []
    # A run that was killed or refused in the middle has left some partitions as they were.
    moved = [place for place in to if committed.get(place) not in (left_by_run.get(place), to[place])]
    if moved and not even_if_moved:
        reasons.append(
            f"the group has moved since the run ({_compared(moved, left_by_run, committed)}): "
            "say --even-if-moved to put it back all the same"
        )
    return reasons


def _change(
    groups: KafkaGroups,
    ledger: psycopg.Connection,
    group: str,
    act: Act,
    *,
    kind: str,
    parameters: Mapping[str, object],
    before: Positions,
    after: Positions,
    counts: Mapping[str, object],
    left: Collection[Place] = (),
) -> Applied:
    """Record, alter, read back, record."""
    run_id = open_run(ledger, kind, act, parameters=parameters, before=_rows(before), after=_rows(after))
    changes = {place: offset for place, offset in after.items() if before[place] != offset}
    to_set = {place: offset for place, offset in changes.items() if offset is not None}
    found: dict[Place, int | None] | None = None
    error: str | None = "interrupted while it changed offsets (outrider offsets show tells which)"
    try:
        refused: dict[Place, str] = {}
        if len(to_set) < len(changes):
            groups.forget(group)
        if to_set:
            refused = groups.alter(group, to_set)
        committed = groups.committed(group, after)
        found = {place: committed.get(place) for place in after}
        error = _failure(refused, after, found)
    except KeyboardInterrupt:
        raise OffsetsError(f"{error}; run {run_id} has what was there before: outrider offsets undo {run_id}") from None
    except OffsetsError as failure:
        error = str(failure)
        raise OffsetsError(
            f"{failure}; run {run_id} has what was there before: outrider offsets undo {run_id}"
        ) from None
    finally:
        changed = sum(found is not None and found[place] == offset for place, offset in changes.items())
        close_run(
            ledger,
            run_id,
            after=None if found is None else _rows(found),
            counts={**counts, "partitions": len(after), "changed": changed, "left": len(left)},
            error=error,
        )
    if error is not None:
        raise OffsetsError(f"{error}; run {run_id} has what was there before: outrider offsets undo {run_id}")
    return Applied(
        run_id=run_id,
        group=group,
        before=_structs(before),
        after=_structs(found),
        left=_structs({place: found[place] for place in left}),
    )


def _failure(refused: Mapping[Place, str], after: Positions, found: Positions) -> str | None:
    if refused:
        named = [f"{place}: {why}" for place, why in list(refused.items())[:DIFFERENCES_NAMED_MAX]]
        return f"the broker refused {len(refused)} of {len(after)} partitions ({', '.join(named)})"
    differing = [place for place in after if found[place] != after[place]]
    if differing:
        return (
            f"read back, the offsets are not what was set ({_compared(differing, after, found)}): "
            "somebody commits for the group without being its member"
        )
    return None


def _settled(groups: KafkaGroups, group: str, care: Care, say: Say) -> GroupStanding:
    """Wait until the group is inactive, and then watch it. Raises RefusedError where someone commits meanwhile."""
    deadline = time.monotonic() + care.wait_seconds
    standing = groups.standing(group)
    said = None
    while standing.is_active and time.monotonic() < deadline:
        if said != (said := f"waiting for {len(standing.members)} members of {group} to be gone ({standing.state})"):
            say(said)
        time.sleep(POLL_SECONDS)
        standing = groups.standing(group)
    if standing.is_active or standing.state == UNKNOWN:
        return standing
    deadline = time.monotonic() + care.watch_seconds
    first = groups.committed(group)
    if care.watch_seconds > 0:
        say(f"watching {group} for {care.watch_seconds:g} s: a consumer with assign() commits without being a member")
    while time.monotonic() < deadline:
        time.sleep(min(POLL_SECONDS, care.watch_seconds))
        now = groups.committed(group)
        if moved := [place for place in now if first.get(place) != now[place]]:
            who = f"someone commits for {group} without being its member ({_compared(moved, first, now)})"
            raise RefusedError([f"{who}: stop the consumer that uses assign() with this group"])
    return groups.standing(group)


@contextmanager
def _alone(ledger: psycopg.Connection, group: str) -> Iterator[None]:
    try:
        with alone(ledger, "offsets of group", group):
            yield
    except BusyError as error:
        raise RefusedError([str(error)]) from None


def _within_logs(groups: KafkaGroups, to: Positions, say: Say) -> Positions:
    """Retention goes on after a run. An offset outside the log would leave the choice to each consumer's own setting,
    which is the end as often as the beginning."""
    bounds = groups.bounds(sorted(to))
    within = {place: None if offset is None else bounds[place].nearest(offset) for place, offset in to.items()}
    for place, offset in to.items():
        if within[place] != offset:
            say(f"{place}: {offset} is not in the log any more, so {within[place]} it is")
    return within


def _compared(places: Sequence[Place], expected: Mapping[Place, int | None], found: Mapping[Place, int | None]) -> str:
    named = [
        f"{place}: {_or_nothing(expected.get(place))} -> {_or_nothing(found.get(place))}"
        for place in places[:DIFFERENCES_NAMED_MAX]
    ]
    more = len(places) - DIFFERENCES_NAMED_MAX
    return ", ".join(named) + (f", and {more} more" if more > 0 else "")


def _or_nothing(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


def _positions(rows: object) -> dict[Place, int | None]:
    """From a run row. Raises OffsetsError."""
    try:
        found = msgspec.convert(rows, tuple[PartitionOffset, ...])
    except msgspec.ValidationError as error:
        raise OffsetsError(f"the run's positions cannot be read: {error}") from None
    return {Place(row.topic, row.partition): row.offset for row in found}


def _structs(positions: Positions) -> tuple[PartitionOffset, ...]:
    return tuple(PartitionOffset(place.topic, place.partition, offset) for place, offset in sorted(positions.items()))


def _rows(positions: Positions) -> object:
    return msgspec.to_builtins(_structs(positions))
