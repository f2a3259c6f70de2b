"""Making a plan: the source is read and counted with the rules of a run, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from pipeline.ledger import replay_plan
from pipeline.ledger.operator import list_destinations
from pipeline.ledger.replay import Choice, Source
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place, Stretch
from pipeline.replay.dispatch_messages import sort_messages
from pipeline.replay.errors import ReplayError
from pipeline.replay.id_list import describe, read_ids
from pipeline.replay.plan import PLAN_FORMAT, IdList, Plan, Range, Read, expected_seconds, sealed
from pipeline.replay.ranges import Wanted, resolve
from pipeline.replay.topic_scan import Batch, TopicScan
from topics.security import KafkaConnection

SAMPLE_ROWS = 10

Progress = Callable[[int, int], None]
"""Told now and then: offsets read, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    source: Source
    wanted: Wanted | None
    """Of a topic."""
    choice: Choice
    ids_from: Path | None
    rate_per_second: float
    share: float


def make_plan(
    kafka: KafkaConnection,
    ledger: psycopg.Connection,
    request: PlanRequest,
    *,
    topic: str,
    reader_group: str,
    progress: Progress = lambda done, total: None,
) -> Plan:
    """``topic``: where dispatches lie. Raises ReplayError or OffsetsError."""
    until = replay_plan.database_clock(ledger)
    replay_plan.begin_plan(ledger)
    id_list = None if request.ids_from is None else _load_list(ledger, request.ids_from)
    is_listed = id_list is not None
    cluster_id: str | None = None
    ranges: tuple[Range, ...] = ()
    read: Read | None = None
    if request.source == "topic":
        if request.wanted is None:
            raise ValueError("a topic's range is always given")
        groups = KafkaGroups(kafka)
        cluster_id = groups.cluster_id()
        ranges = resolve(groups, topic, request.wanted)
        read = _read_topic(kafka, ledger, ranges, reader_group, progress)
        origin, words = "topic", f"{topic} {request.wanted}"
    elif request.source == "dead":
        origin, words = "dead", "dead letters"
    else:
        origin, words = ("list", "listed deliveries") if is_listed else ("ledger", "the ledger")
    counts = replay_plan.count_plan(ledger, origin, request.choice, until=until, is_listed=is_listed)
    sample = replay_plan.sample_plan(ledger, origin, request.choice, until=until, is_listed=is_listed, rows=SAMPLE_ROWS)
    rates = {entry.destination_id: entry.start_rate_per_second for entry in list_destinations(ledger)}
    seconds, slowest = expected_seconds(counts, request.rate_per_second, request.share, rates)
    return sealed(
        Plan(
            format=PLAN_FORMAT,
            cluster_id=cluster_id,
            source=request.source,
            origin=words,
            ranges=ranges,
            until=until,
            choice=request.choice,
            id_list=id_list,
            rate_per_second=request.rate_per_second,
            share=request.share,
            read=read,
            counts=tuple(counts),
            sample=tuple(sample),
            expected_seconds=seconds,
            slowest_destination=slowest,
        )
    )


def stretches_of(ranges: tuple[Range, ...]) -> dict[Place, Stretch]:
    return {Place(r.topic, r.partition): Stretch(r.begin, r.end) for r in ranges}


def _load_list(ledger: psycopg.Connection, path: Path) -> IdList:
    ids, unknown = replay_plan.list_in_plan(ledger, read_ids(path))
    if not ids:
        raise ReplayError(f"{path} names no delivery")
    return describe(path, ids=ids, unknown=unknown)


def _read_topic(
    kafka: KafkaConnection, ledger: psycopg.Connection, ranges: tuple[Range, ...], group: str, progress: Progress
) -> Read:
    read_on = ReadProgress(ranges, progress)
    with TopicScan(kafka, group, stretches_of(ranges)) as scan:
        for batch in scan.batches():
            found = sort_messages(batch.messages)
            keys = [named.key for named in found.named]
            foreign = len(replay_plan.find_in_plan(ledger, keys)) if keys else 0
            read_on.add(batch, broken=len(found.broken), foreign=foreign)
    return read_on.result()


class ReadProgress:
    """Adds up what was read of some ranges."""

    def __init__(self, ranges: tuple[Range, ...], progress: Progress) -> None:
        self._progress = progress
        self._begins = {Place(r.topic, r.partition): r.begin for r in ranges}
        self._reached = dict(self._begins)
        self._total = sum(r.end - r.begin for r in ranges)
        self._messages = self._broken = self._foreign = 0
        self._removed = sum(r.removed for r in ranges)

    def add(self, batch: Batch, *, broken: int, foreign: int = 0) -> None:
        self._messages += len(batch.messages)
        self._broken += broken
        self._foreign += foreign
        self._removed += sum(batch.removed.values())
        self._reached |= batch.reached
        self._progress(sum(self._reached.values()) - sum(self._begins.values()), self._total)

    def result(self) -> Read:
        return Read(messages=self._messages, broken=self._broken, foreign=self._foreign, removed=self._removed)
