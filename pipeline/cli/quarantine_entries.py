"""What lies in quarantine and is not settled: rows that the connector could not publish, messages that no worker could
read. Both lie in one topic; an entry is known by its offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from confluent_kafka import Message

from connectors.kafka.client import headers_of
from connectors.kafka.log_reader import LogReader
from connectors.quarantine import Mark, QuarantinedRow, SettledEntries, decode_quarantine
from topics.codecs import dispatch_identity

READ_SECONDS = 300.0
ORIGIN_HEADER = "quarantine_origin"
REASON_HEADER = "quarantine_reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """``where`` is the row's table, or the topic/partition/offset of the message."""

    number: int
    kind: Literal["row", "message"]
    at: datetime | None
    where: str
    key: bytes
    id: str | None
    reason: str
    row: QuarantinedRow | None
    delivery_id: str | None
    dispatch_seq: int | None
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledEntry:
    """One that was settled, and by which mark."""

    entry: Entry
    mark: Mark


def unsettled_entries(kafka: Mapping[str, Any], topic: str, database: str) -> Iterator[Entry]:
    """Oldest first, of this database. Memory does not grow with them. Raises ConnectorError."""
    settled = SettledEntries()
    for number, message in _read(kafka, topic):
        content = decode_quarantine(message.value(), headers_of(message))
        if isinstance(content, Mark):
            settled.add(content, number)
    for number, message in _read(kafka, topic):
        if number not in settled:
            entry = entry_of(number, message, database)
            if entry is not None:
                yield entry


def find_entry(kafka: Mapping[str, Any], topic: str, database: str, number: int) -> Entry | SettledEntry | None:
    """The entry of that number, with the mark that settled it, if one has."""
    entry: Entry | None = None
    for offset, message in _read(kafka, topic):
        if offset == number:
            entry = entry_of(offset, message, database)
        elif entry is not None:
            content = decode_quarantine(message.value(), headers_of(message))
            if isinstance(content, Mark) and number in content.entries:
                return SettledEntry(entry=entry, mark=content)
    return entry


def entry_of(number: int, message: Message, database: str) -> Entry | None:
    """None for marks, for rows of other databases, and for what nobody of ours wrote."""
    headers = headers_of(message)
    texts = {name: _text(content) for name, content in headers.items()}
    timestamp_ms = message.timestamp()[1]
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms > 0 else None
    key = message.key() or b""
    content = decode_quarantine(message.value(), headers)
    if isinstance(content, QuarantinedRow):
        if content.database != database:
            return None
        return Entry(
            number=number,
            kind="row",
            at=at,
            where=content.table,
            key=key,
            id=content.id,
            reason=content.reason,
            row=content,
            delivery_id=texts.get("delivery_id"),
            dispatch_seq=None,
            headers=texts,
        )
    if content is None and ORIGIN_HEADER in headers:
        identity = dispatch_identity(headers.items())
        return Entry(
            number=number,
            kind="message",
            at=at,
            where=texts[ORIGIN_HEADER],
            key=key,
            id=texts.get("id"),
            reason=texts.get(REASON_HEADER, ""),
            row=None,
            delivery_id=None if identity is None else identity[0],
            dispatch_seq=None if identity is None else identity[1],
            headers=texts,
        )
    return None


def _read(kafka: Mapping[str, Any], topic: str) -> Iterator[tuple[int, Message]]:
    with LogReader(kafka, topic, lambda: None) as reader:
        for message in reader.read_to_end(READ_SECONDS):
            offset = message.offset()
            if offset is not None:
                yield offset, message


def _text(content: bytes | str | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else content.decode(errors="replace")
