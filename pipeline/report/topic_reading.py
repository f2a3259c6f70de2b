"""Messages of the two topics into the report's table. What cannot be understood goes there with its defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import psycopg
from confluent_kafka import Message as KafkaMessage

from pipeline.audit.client_messages import message_of
from pipeline.audit.records import Message, Reader, read_attempt, read_damaged, read_dispatch
from pipeline.core.ids import message_identity
from pipeline.ledger.audit import AuditRecord
from pipeline.ledger.report_tables import TopicMessage, copy_message, copying_messages
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.places import Place, Stretch
from pipeline.offsets.read_messages import Progress, ReadLimits, read_messages
from topics.security import KafkaConnection

READ_SECONDS = 24 * 3600.0
"""Reading ends by itself at the ends that were captured, or where Kafka says nothing for long; this is the last bound."""
BIGINT_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Topics:
    dispatch: str
    attempts: str


@dataclass(slots=True)
class PlaceSeen:
    """What was read of a partition: all before ``read_to``; its first message's time and its last one's offset."""

    read_from: int
    read_to: int
    first_time: datetime | None = None
    last_offset: int | None = None


def copy_topics(
    session: psycopg.Connection,
    kafka: KafkaConnection,
    topics: Topics,
    seen: Mapping[Place, PlaceSeen],
    ends: Mapping[Place, int],
    *,
    progress: Progress,
) -> None:
    """Read on from where each partition was read to, up to these ends, and note it in ``seen``. Raises OffsetsError."""
    stretches = {place: Stretch(seen[place].read_to, end) for place, end in ends.items()}
    with copying_messages(session) as copy:

        def take(place: Place, message: KafkaMessage) -> None:
            read = to_topic_message(message, is_attempt=place.topic == topics.attempts)
            if seen[place].first_time is None:
                seen[place].first_time = read.logged_at
            seen[place].last_offset = read.log_offset
            copy_message(copy, read)

        readings = read_messages(kafka, stretches, ReadLimits(seconds=READ_SECONDS), on_message=take, progress=progress)
    for place, reading in readings.items():
        if not reading.is_over:
            raise OffsetsError(f"{place} was not read to its end in {READ_SECONDS:g} s")
        seen[place].read_to = max(seen[place].read_to, stretches[place].end)


def to_topic_message(message: KafkaMessage, *, is_attempt: bool) -> TopicMessage:
    """Total: what the message holds cannot end a report."""
    reader: Callable[[Message], AuditRecord] = read_attempt if is_attempt else read_dispatch
    record, sent_id = _read(message, reader)
    attempt_id, defect = None, record.defect
    if defect is None and is_attempt:
        attempt_id = (
            int(sent_id) if sent_id.isascii() and sent_id.isdigit() and len(sent_id) <= BIGINT_DIGITS_MAX else None
        )
        defect = "id: is no attempt_id" if attempt_id is None else None
    elif defect is None and sent_id != str(message_identity(record.delivery_id or "", record.dispatch_seq or 0)):
        defect = "identity: the message's id is not the one of its delivery and dispatch"
    return TopicMessage(
        topic=record.topic,
        partition=record.partition,
        log_offset=record.log_offset,
        logged_at=record.logged_at,
        delivery_id=record.delivery_id,
        destination_id=record.destination_id,
        event_id=record.event_id,
        dispatch_seq=record.dispatch_seq,
        attempt_id=attempt_id,
        attempt=record.attempt,
        result=record.result,
        body_sha256=record.body_sha256,
        defect=defect,
        is_attempt=is_attempt,
    )


def _read(message: KafkaMessage, reader: Reader) -> tuple[AuditRecord, str]:
    """The record, and the header ``id``."""
    plain, defect = message_of(message)
    if defect is not None:
        return read_damaged(plain, defect), ""
    sent_id = dict(plain.headers).get("id") or b""
    return reader(plain), sent_id.decode(errors="replace") if isinstance(sent_id, bytes) else sent_id
