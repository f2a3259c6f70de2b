"""A message of Kafka as a row of the audit. Pure, and total: what cannot be understood is recorded with its defect.

Other programs may write to a topic, so nothing in a message is trusted to fit a column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pipeline.ledger.audit import AuditRecord
from topics.codecs import Attempt, Dispatch, RecordError, decode_attempt, decode_dispatch

IDENTITY_CHARACTERS_MAX = 1_024
DEFECT_CHARACTERS_MAX = 500
INTEGER_MAX = 2**31 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_MS_MAX = 253_402_300_799_000  # the year 9999

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
    return _checked(message, decoded, attempt=None, result=None, body_sha256=body_sha256)


def read_attempt(message: Message) -> AuditRecord:
    """A message of the attempts topic; the hash is that of the body which the attempt sent."""
    decoded = decode_attempt(message.value)
    if isinstance(decoded, RecordError):
        return _broken(message, str(decoded), None)
    if message.key != decoded.destination_id.encode(errors="replace"):
        return _broken(message, "key: is not the destination of the value", None)
    return _checked(
        message, decoded, attempt=decoded.attempt, result=decoded.result, body_sha256=decoded.payload_sha256
    )


def read_damaged(message: Message, defect: str) -> AuditRecord:
    """A message of which the client or the reader could not make anything; ``defect`` says why."""
    return _broken(message, defect, None)


def _checked(
    message: Message, decoded: Dispatch | Attempt, *, attempt: int | None, result: str | None, body_sha256: bytes | None
) -> AuditRecord:
    texts = {"delivery_id": decoded.delivery_id, "destination_id": decoded.destination_id, "result": result}
    numbers = {"dispatch_seq": decoded.dispatch_seq, "attempt": attempt}
    for name, text in texts.items():
        if text is not None and not _is_storable(text):
            return _broken(message, f"{name}: is too long, or holds a character that no column takes", body_sha256)
    for name, number in numbers.items():
        if number is not None and not 0 <= number <= INTEGER_MAX:
            return _broken(message, f"{name}: is not a number from 0 to {INTEGER_MAX}", body_sha256)
    return AuditRecord(
        topic=message.topic,
        partition=message.partition,
        log_offset=message.offset,
        logged_at=_time(message.timestamp_ms),
        delivery_id=decoded.delivery_id,
        destination_id=decoded.destination_id,
        dispatch_seq=decoded.dispatch_seq,
        attempt=attempt,
        result=result,
        body_sha256=body_sha256,
    )


def _broken(message: Message, defect: str, body_sha256: bytes | None) -> AuditRecord:
    return AuditRecord(
        topic=message.topic,
        partition=message.partition,
        log_offset=message.offset,
        logged_at=_time(message.timestamp_ms),
        body_sha256=body_sha256,
        # The defect may quote what it found.
        defect="".join(c if c.isprintable() else "?" for c in defect[:DEFECT_CHARACTERS_MAX]),
    )


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
