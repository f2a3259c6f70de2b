"""How a group stands: state, members, and for each partition what is committed and what is unread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.offsets.group_standing import Member
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import MessageCount, Stretch
from pipeline.offsets.read_messages import Progress, ReadLimits, read_messages
from topics.security import KafkaConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    topic: str
    partition: int
    committed: int | None
    """None: nothing, and where the group would begin is its consumers' setting. Nothing is counted then."""
    log_start: int
    log_end: int
    stable_end: int
    """Where a read_committed reader stops: below log_end while a transaction is open."""
    lag: MessageCount | None
    """Unread messages up to stable_end, without transaction markers and aborted records."""
    span: int | None
    """The same in offsets, as kafka-consumer-groups shows it."""
    oldest_unread_at: datetime | None
    """Timestamp of the first unread message."""
    member: str | None
    """Who has the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    group: str
    state: str
    members: tuple[Member, ...]
    read_at: datetime
    partitions: tuple[PartitionStanding, ...]


def report_group(
    connection: KafkaConnection,
    group: str,
    *,
    topics: Sequence[str],
    messages_max: int,
    seconds_max: float,
    progress: Progress = lambda done, total: None,
) -> GroupReport:
    """Count at most `messages_max` unread messages, shared evenly by the partitions, for `seconds_max` at most.

    What is left uncounted widens the lag to a range. Of `topics`, or of all that the group has committed or holds.
    Raises OffsetsError.
    """
    groups = KafkaGroups(connection)
    groups.cluster_id()
    standing = groups.standing(group)
    committed = groups.committed(group)
    holder = {place: str(member) for member in standing.members for place in member.partitions}
    named = set(topics) or {place.topic for place in groups.existing([*committed, *holder])}
    places = groups.partitions(named)
    bounds = groups.bounds(places)
    unread = {
        place: Stretch(bounds[place].nearest(committed[place]), bounds[place].stable_end)
        for place in places
        if place in committed
    }
    share = max(1, messages_max // max(1, sum(stretch.span > 0 for stretch in unread.values())))
    limits = ReadLimits(seconds=seconds_max, messages_per_partition=share)
    readings = read_messages(connection, unread, limits, progress=progress)
    return GroupReport(
        group=group,
        state=standing.state,
        members=standing.members,
        read_at=datetime.now(UTC),
        partitions=tuple(
            PartitionStanding(
                topic=place.topic,
                partition=place.partition,
                committed=committed.get(place),
                log_start=bounds[place].start,
                log_end=bounds[place].end,
                stable_end=bounds[place].stable_end,
                lag=readings[place].count if place in readings else None,
                span=unread[place].span if place in unread else None,
                oldest_unread_at=_moment(readings[place].first_timestamp_ms) if place in readings else None,
                member=holder.get(place),
            )
            for place in places
        ),
    )


def _moment(timestamp_ms: int | None) -> datetime | None:
    """None for records without a timestamp, which are marked with -1."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
