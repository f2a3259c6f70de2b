"""Making a plan: the group and the logs are read, the messages counted if that is asked for, and nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.ledger_outlook import DispatchTally, counted, outlook_unread
from pipeline.offsets.places import Place
from pipeline.offsets.plan import PLAN_FORMAT, Plan, plan_moves, with_count
from pipeline.offsets.read_messages import Progress, ReadLimits, read_messages
from pipeline.offsets.targets import Target, ToListed, ToTime
from topics.security import KafkaConnection

Scope = tuple[str, tuple[int, ...] | None]
"""A topic and some of its partitions, or all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    group: str
    target: Target
    scopes: Sequence[Scope]
    """Empty: what the group has committed, or what the file lists."""
    operator: str
    reason: str
    scan: ReadLimits | None
    """Read the affected messages to count them; None leaves the offsets' span as upper bound."""


def make_plan(
    connection: KafkaConnection,
    request: PlanRequest,
    *,
    ledger: psycopg.Connection | None,
    progress: Progress = lambda done, total: None,
) -> Plan:
    """`ledger` is given for the delivery group, whose plans also say what the ledger will do. Raises OffsetsError."""
    groups = KafkaGroups(connection)
    cluster_id = groups.cluster_id()
    standing = groups.standing(request.group)
    committed = groups.committed(request.group)
    places = _places(groups, request, set(committed))
    committed = groups.committed(request.group, places)
    bounds = groups.bounds(places)
    at_time = groups.offsets_at(places, request.target.at) if isinstance(request.target, ToTime) else {}
    moves = plan_moves(request.target, places, committed=committed, bounds=bounds, at_time=at_time)
    counts = {move.place: move.messages for move in moves}
    outlook = None
    if request.scan is not None:
        tally = None if ledger is None else DispatchTally(ledger, moves)
        readings = read_messages(
            connection,
            {move.place: move.affected for move in moves},
            request.scan,
            on_message=(lambda place, message: None) if tally is None else tally.add,
            progress=progress,
        )
        counts = {place: reading.count for place, reading in readings.items()}
        if tally is not None:
            outlook = tally.outlook(*counted(moves, counts))
    elif ledger is not None:
        outlook = outlook_unread(ledger, *counted(moves, counts))
    return Plan(
        format=PLAN_FORMAT,
        cluster_id=cluster_id,
        group=request.group,
        group_state=standing.state,
        members=len(standing.members),
        target=str(request.target),
        operator=request.operator,
        reason=request.reason,
        planned_at=datetime.now(UTC),
        moves=tuple(with_count(move, counts[move.place]) for move in moves),
        ledger=outlook,
    )


def _places(groups: KafkaGroups, request: PlanRequest, committed: set[Place]) -> list[Place]:
    """What the plan is about, in order. Raises OffsetsError where that is nothing, or not there."""
    asked = set(request.target.offsets) if isinstance(request.target, ToListed) else committed
    if request.scopes:
        known = groups.partitions(topic for topic, _ in request.scopes)
        scoped = {place for scope in request.scopes for place in _in_scope(known, scope)}
        # A file says itself which partitions it is about; a scope narrows it.
        places = scoped & asked if isinstance(request.target, ToListed) else scoped
    else:
        places = asked
        if gone := sorted(places - groups.existing(places)):
            if isinstance(request.target, ToListed):
                raise OffsetsError(f"{gone[0]} does not exist")
            # The group's commits of a deleted topic mean nothing any more.
            places = places - set(gone)
    if not places:
        raise OffsetsError(
            f"nothing to plan: group {request.group} has committed nothing here; name what to seed with --topic"
        )
    return sorted(places)


def _in_scope(known: Sequence[Place], scope: Scope) -> set[Place]:
    topic, numbers = scope
    of_topic = {place for place in known if place.topic == topic}
    if numbers is None:
        return of_topic
    wanted = {Place(topic, number) for number in numbers}
    if missing := sorted(wanted - of_topic):
        raise OffsetsError(f"{missing[0]} does not exist")
    return wanted
