"""One report: the ledger taken, the topics read beside it, the audit asked, and all of it compared in the database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from pipeline.ledger.report_tables import (
    Moment,
    ReadPlace,
    Scope,
    copy_receiver_ids,
    find,
    finding_counts,
    message_count,
    put_places,
    take_ledger,
    unmatched_rows,
)
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place
from pipeline.offsets.read_messages import Progress
from pipeline.report.compare import Verdict, judge
from pipeline.report.topic_reading import PlaceSeen, Topics, copy_topics
from pipeline.report.watermark import Settling, Watermark, first_seen, wait_for_audit, wait_until_settled
from pipeline.settings import Settings
from topics.declarations import ATTEMPTS, DISPATCH

FINDERS = (
    "find_not_in_topic",
    "find_attempt_not_in_topic",
    "find_no_dispatch",
    "find_not_in_ledger",
    "find_attempt_not_in_ledger",
    "find_duplicates",
    "find_mismatches",
    "find_ledger_body_mismatches",
    "find_broken",
    "find_no_attempt",
    "find_not_in_audit",
    "find_audit_mismatches",
    "find_only_in_audit",
    "find_audited",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was compared, and the verdict. Rows and lists stay in the session's tables: see report_tables."""

    scope: Scope
    watermark: Watermark
    verdict: Verdict
    messages: int
    receiver_ids: int | None
    """That the receiver's list held; None without one."""


def make_report(
    session: psycopg.Connection,
    settings: Settings,
    scope: Scope,
    settling: Settling,
    *,
    receiver_ids: Iterable[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Raises OffsetsError where Kafka does not answer, and psycopg.Error."""
    groups = KafkaGroups(settings.kafka)
    groups.cluster_id()
    topics = Topics(settings.name(DISPATCH), settings.name(ATTEMPTS))
    places = groups.partitions([topics.dispatch, topics.attempts])
    moment = take_ledger(session, scope)

    seen, cut = first_seen(groups, places, scope.since)

    def read_on() -> bool:
        copy_topics(session, settings.kafka, topics, seen, _ends(groups, places), progress=progress)
        put_places(session, [])
        return unmatched_rows(session) == 0

    settled, confirmed = wait_until_settled(session, moment, settling, read_on)
    audited = wait_for_audit(groups, settings.name("audit"), seen, settling)
    read = [
        ReadPlace(
            topic=place.topic,
            partition=place.partition,
            is_attempt=place.topic == topics.attempts,
            read_from=at.read_from,
            read_to=at.read_to,
            audited_to=audited[place],
            kept_since=_kept_since(at, moment.at) if place in cut else None,
        )
        for place, at in seen.items()
    ]
    put_places(session, read)
    ids = None if receiver_ids is None else copy_receiver_ids(session, receiver_ids)
    find(session, FINDERS, {**scope.parameters, **_retention(settings, moment), "is_settled": settled})
    if ids is not None:
        find(session, ["find_at_receiver"], {})
    return Report(
        scope=scope,
        watermark=Watermark(
            taken_at=moment.at, ledger_lsn=moment.lsn, confirmed_lsn=confirmed, is_settled=settled, places=read
        ),
        verdict=judge(finding_counts(session)),
        messages=message_count(session),
        receiver_ids=ids,
    )


def _ends(groups: KafkaGroups, places: list[Place]) -> dict[Place, int]:
    return {place: bounds.stable_end for place, bounds in groups.bounds(places).items()}


def _kept_since(at: PlaceSeen, now: datetime) -> datetime:
    return now if at.first_time is None else at.first_time


def _retention(settings: Settings, moment: Moment) -> dict[str, object]:
    """What is older may have been dropped."""
    return {
        "attempts_kept_since": moment.at - timedelta(days=settings.attempt_retention_days),
        "audit_kept_since": moment.at - timedelta(days=settings.audit_retention_days),
    }
