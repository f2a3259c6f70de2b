"""Rows that cannot be published as they are: a small record says which row, from where, and why.

The row's own content is not copied, since its size may be the reason: the table still holds it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from connectors.postgres.lsn import format_lsn
from connectors.router import HeaderPair, Record

REASON_BYTES_MAX: Final = 500
HEADERS_BYTES_MAX: Final = 16 * 1024


class QuarantinedRow(msgspec.Struct, frozen=True):
    """The JSON value of a record in the quarantine topic.

    ``lsn`` and ``row`` are the position of the change in its source transaction; of a row read from the
    first snapshot, ``lsn`` is the slot's consistent point and ``row`` its number in the snapshot.
    """

    table: str
    topic: str
    reason: str
    lsn: str
    row: int
    value_bytes: int | None


def quarantine_record(
    quarantine_topic: str, *, table: str, topic: str, reason: str, lsn: int, row: int, record: Record | None
) -> Record:
    """The record for a row that became ``record``, or None where it could not become one.

    Key and headers are the refused record's own, so that its place among those of its key stays known;
    headers are left out where they are large.
    """
    short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
    size = None if record is None or record.value is None else len(record.value)
    value = msgspec.json.encode(QuarantinedRow(table, topic, short, format_lsn(lsn), row, size))
    headers: list[HeaderPair] = [("quarantine_reason", short)]
    key = b""
    if record is not None:
        key = record.key if len(record.key) <= HEADERS_BYTES_MAX else b""
        if sum(len(name) + len(content or b"") for name, content in record.headers) <= HEADERS_BYTES_MAX:
            headers += record.headers
    return Record(quarantine_topic, key, value, headers)
