"""Rows that cannot be published as they are: a small record says which row, from where, and why.

The row's own content is not copied, since its size may be the reason: the table still holds it, and a release reads
it there again. An entry is known by its number, its offset in the quarantine's only partition. What became of entries
is told by later records, the marks, written in the transaction of what they tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from connectors.postgres.lsn import format_lsn
from connectors.router import HeaderPair, Record, RowIdentity

REASON_BYTES_MAX: Final = 500
HEADERS_BYTES_MAX: Final = 16 * 1024
MARK_ENTRIES_MAX: Final = 500

ID_HEADER: Final = "id"
REASON_HEADER: Final = "quarantine_reason"
TABLE_HEADER: Final = "quarantine_table"
MARK_HEADER: Final = "quarantine_mark"

MarkState: TypeAlias = Literal["released", "gone", "given_up"]


class QuarantinedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON value of an entry.

    ``lsn`` and ``row`` are the position of the change in its source transaction; of a row read from a
    snapshot, ``lsn`` is the slot's consistent point and ``row`` its number in the snapshot. ``columns`` are those by
    which the row is found in its table, as canonical text.
    """

    database: str
    table: str
    topic: str
    reason: str
    lsn: str
    row: int
    value_bytes: int | None = None
    id: str | None = None
    columns: dict[str, str] = {}
    is_held: bool = False
    """Nothing is wrong with the row itself: it waits behind another of its key."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON value of a mark: entries that are settled, how, and by whom. ``at`` is ISO 8601."""

    state: MarkState
    entries: tuple[int, ...]
    operator: str
    reason: str
    at: str


def quarantine_record(
    quarantine_topic: str,
    *,
    database: str,
    table: str,
    topic: str,
    reason: str,
    lsn: int,
    row: int,
    identity: RowIdentity,
    record: Record | None,
    is_held: bool = False,
) -> Record:
    """The entry for a row that became ``record``, or None where it could not become one.

    Key and headers are the refused record's own, so that its place among those of its key stays known;
    headers are left out where they are large. The header ``id`` is there whenever the row's id could be read.
    """
    short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
    value = QuarantinedRow(
        database=database,
        table=table,
        topic=topic,
        reason=short,
        lsn=format_lsn(lsn),
        row=row,
        value_bytes=None if record is None or record.value is None else len(record.value),
        id=identity.id,
        columns=identity.columns,
        is_held=is_held,
    )
    headers: list[HeaderPair] = [(REASON_HEADER, short), (TABLE_HEADER, table)]
    if record is not None and sum(len(name) + len(content or b"") for name, content in record.headers) <= (
        HEADERS_BYTES_MAX
    ):
        headers += record.headers
    if identity.id is not None and not any(name == ID_HEADER for name, _ in headers):
        headers.append((ID_HEADER, identity.id))
    key = identity.key or b""
    return Record(quarantine_topic, key if len(key) <= HEADERS_BYTES_MAX else b"", msgspec.json.encode(value), headers)


def mark_record(quarantine_topic: str, mark: Mark) -> Record:
    """The record that settles up to MARK_ENTRIES_MAX entries."""
    if not 0 < len(mark.entries) <= MARK_ENTRIES_MAX:
        raise ValueError(f"a mark settles 1 to {MARK_ENTRIES_MAX} entries, not {len(mark.entries)}")
    return Record(quarantine_topic, b"", msgspec.json.encode(mark), [(MARK_HEADER, mark.state)])


def decode_quarantine(value: bytes | None, headers: Mapping[str, bytes | str | None]) -> QuarantinedRow | Mark | None:
    """What a record of the quarantine topic says; None for one that is of neither kind, as other writers' are."""
    if value is None:
        return None
    try:
        if MARK_HEADER in headers:
            return msgspec.json.decode(value, type=Mark)
        if TABLE_HEADER in headers:
            return msgspec.json.decode(value, type=QuarantinedRow)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return None


class SettledEntries:
    """Which entries of a quarantine are settled: one bit each, from the first that a mark names."""

    def __init__(self) -> None:
        self._base: int | None = None
        self._bits = bytearray()

    def add(self, mark: Mark, at: int) -> None:
        """``at`` is the mark's own offset: it settles what lies before it, and nothing else."""
        for entry in mark.entries:
            if not 0 <= entry < at:
                continue
            if self._base is None:
                self._base = entry & ~7
            if entry < self._base:
                lower = entry & ~7
                self._bits[:0] = bytes((self._base - lower) >> 3)
                self._base = lower
            place = entry - self._base
            if place >> 3 >= len(self._bits):
                self._bits.extend(bytes((place >> 3) + 1 - len(self._bits)))
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, entry: int) -> bool:
        place = -1 if self._base is None else entry - self._base
        return 0 <= place < len(self._bits) * 8 and bool(self._bits[place >> 3] & 1 << (place & 7))
