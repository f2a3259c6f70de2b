"""A message of Kafka as a row of the audit. Pure, and total: what cannot be understood is recorded with its defect.

Other programs may write to a topic, so nothing in a message is trusted to fit a column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.ledger.audit import AuditRecord
from topics.codecs import RecordError, decode_attempt, decode_dispatch

IDENTITY_CHARACTERS_MAX = 1_024
KEY_IDS_MAX = 100
DURATION_SECONDS_MAX = 10_000_000.0
DEFECT_CHARACTERS_MAX = 500
INTEGER_MAX = 2**31 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_MS_MAX = 253_402_300_799_000  # the year 9999

TEXTS = ("delivery_id", "destination_id", "event_id", "reason", "result", "outcome", "worker_id")
NUMBERS = ("dispatch_seq", "attempt", "status")

Headers = Iterable[tuple[str, bytes | str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What the audit reads of a record, whatever client read it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """By the topic's clock; negative where there is none."""
    key: bytes | None
    value: bytes | None
    headers: Headers


Reader = Callable[[Message], AuditRecord]


def read_dispatch(message: Message) -> AuditRecord:
    """A message of the dispatch topic; the hash is of its value."""
    decoded = decode_dispatch(message.key, message.value, message.headers)
    body_sha256 = None if message.value is None else hashlib.sha256(message.value).digest()
    if isinstance(decoded, RecordError):
        return _broken(message, str(decoded), body_sha256)
    return _checked(
        _placed(
            message,
            delivery_id=decoded.delivery_id,
            destination_id=decoded.destination_id,
            event_id=decoded.event_id,
            dispatch_seq=decoded.dispatch_seq,
            reason=decoded.reason,
            body_sha256=body_sha256,
        ),
        message,
    )


def read_attempt(message: Message) -> AuditRecord:
    """A message of the attempts topic; the hash is that of the body which the attempt sent."""
    decoded = decode_attempt(message.value)
    if isinstance(decoded, RecordError):
        return _broken(message, str(decoded), None)
    if message.key != decoded.destination_id.encode(errors="replace"):
        return _broken(message, "key: is not the destination of the value", None)
    if not 0 <= decoded.duration_seconds <= DURATION_SECONDS_MAX:
        return _broken(message, "duration_seconds: is no duration", decoded.payload_sha256)
    started_at = _moment(decoded.started_at)
    if started_at is None:
        return _broken(message, "started_at: is no moment with its offset from UTC", decoded.payload_sha256)
    return _checked(
        _placed(
            message,
            delivery_id=decoded.delivery_id,
            destination_id=decoded.destination_id,
            event_id=decoded.event_id,
            dispatch_seq=decoded.dispatch_seq,
            attempt=decoded.attempt,
            result=decoded.result,
            outcome=decoded.outcome,
            status=decoded.status,
            ambiguous=decoded.ambiguous,
            worker_id=decoded.worker_id,
            key_ids=decoded.key_ids,
            started_at=started_at,
            duration_us=round(decoded.duration_seconds * 1_000_000),
            body_sha256=decoded.payload_sha256,
        ),
        message,
    )


def read_damaged(message: Message, defect: str) -> AuditRecord:
    """A message of which the client or the reader could not make anything; ``defect`` says why."""
    return _broken(message, defect, None)


def _checked(record: AuditRecord, message: Message) -> AuditRecord:
    """The record, if each of its values fits its column."""
    for name in TEXTS:
        text = getattr(record, name)
        if text is not None and not _is_storable(text):
            return _broken(
                message, f"{name}: is too long, or holds a character that no column takes", record.body_sha256
            )
    for name in NUMBERS:
        number = getattr(record, name)
        if number is not None and not 0 <= number <= INTEGER_MAX:
            return _broken(message, f"{name}: is not a number from 0 to {INTEGER_MAX}", record.body_sha256)
    if record.key_ids is not None and (
        len(record.key_ids) > KEY_IDS_MAX or not all(_is_storable(key_id) for key_id in record.key_ids)
    ):
        return _broken(message, "key_ids: are too many, or hold what no column takes", record.body_sha256)
    return record


def _placed(message: Message, **columns: Any) -> AuditRecord:
    return AuditRecord(
        topic=message.topic,
        partition=message.partition,
        log_offset=message.offset,
        logged_at=_time(message.timestamp_ms),
        **columns,
    )


def _broken(message: Message, defect: str, body_sha256: bytes | None) -> AuditRecord:
    # The defect may quote what it found.
    printable = "".join(c if c.isprintable() else "?" for c in defect[:DEFECT_CHARACTERS_MAX])
    return _placed(message, body_sha256=body_sha256, defect=printable)


def _is_storable(text: str) -> bool:
    if len(text) > IDENTITY_CHARACTERS_MAX or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=min(max(timestamp_ms, 0), TIMESTAMP_MS_MAX))


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
