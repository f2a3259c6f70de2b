"""The plan of a rebuild: both topics are read into tables of this session, and nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from msgspec import UNSET

from pipeline.ledger import rebuild as ledger_rebuild
from pipeline.ledger import replay_plan
from pipeline.ledger.rebuild import NO_RUN
from pipeline.ledger.replay import Choice
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.replay.dispatch_messages import sort_messages
from pipeline.replay.plan import PLAN_FORMAT, AttemptIds, Plan, expected_seconds, sealed
from pipeline.replay.planning import SAMPLE_ROWS, Progress, ReadProgress, stretches_of
from pipeline.replay.ranges import ByTime, resolve
from pipeline.replay.rebuilding import evidence_of, newest_of_each
from pipeline.replay.topic_scan import TopicScan
from topics.security import KafkaConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTopics:
    """Where dispatches and attempts lie, and the group that reads them; nothing is committed for it."""

    dispatch: str
    attempts: str
    reader_group: str


def make_rebuild_plan(
    kafka: KafkaConnection,
    ledger: psycopg.Connection,
    wanted: ByTime,
    topics: RebuildTopics,
    *,
    rate_per_second: float,
    progress: Progress = lambda done, total: None,
) -> Plan:
    """What the topics hold and the ledger lacks. Raises OffsetsError or ReplayError."""
    until = replay_plan.database_clock(ledger)
    ledger_rebuild.begin_plan(ledger)
    groups = KafkaGroups(kafka)
    cluster_id = groups.cluster_id()
    # Attempts come after their dispatch: those until the end count.
    attempts = resolve(groups, topics.attempts, ByTime(wanted.since, None))
    dispatches = resolve(groups, topics.dispatch, wanted)
    read_on = ReadProgress((*attempts, *dispatches), progress)
    given = ledger_rebuild.given_attempt_ids(ledger)
    proven = 0
    with TopicScan(kafka, topics.reader_group, stretches_of(attempts)) as scan:
        for batch in scan.batches():
            found, refused = evidence_of(batch.messages)
            proven = max((proven, *(a.attempt_id for a in found)))
            ledger_rebuild.gather(ledger, NO_RUN, found)
            read_on.add(batch, broken=len(refused))
    with TopicScan(kafka, topics.reader_group, stretches_of(dispatches)) as scan:
        for batch in scan.batches():
            sorted_out = sort_messages(batch.messages)
            ledger_rebuild.find(ledger, newest_of_each(sorted_out.named))
            read_on.add(batch, broken=len(sorted_out.broken))
    counts = ledger_rebuild.count(ledger, until)
    seconds, _ = expected_seconds(counts, rate_per_second, 1.0, {})
    return sealed(
        Plan(
            format=PLAN_FORMAT,
            cluster_id=cluster_id,
            source="rebuild",
            origin=f"rebuild from {topics.dispatch} {wanted}",
            ranges=(*attempts, *dispatches),
            until=until,
            choice=Choice(mode="missing"),
            id_list=None,
            rate_per_second=rate_per_second,
            share=1.0,
            read=read_on.result(),
            counts=tuple(counts),
            sample=tuple(ledger_rebuild.sample(ledger, SAMPLE_ROWS)),
            expected_seconds=seconds,
            slowest_destination=None,
            attempt_ids=AttemptIds(given=given, proven=proven) if proven > given else UNSET,
        )
    )
