"""Decoding of pgoutput, PostgreSQL's logical replication format. Bytes go in, messages come out.

Protocol versions 1 and 2 are understood: whole transactions, streamed ones that are still in
progress, logical messages, and column values in text or binary form. No I/O happens here, and the only
state is whether a streamed block is open, because version 2 puts a transaction id before each message
inside such a block.

A column's value says by its type how it was sent:

===============  ==================================================
``bytes``        binary form, as the type's send function gives it
``str``          text form, as the type's output function gives it
``None``         NULL
``UNCHANGED``    a TOASTed value that an update left as it was
===============  ==================================================

All integers are big-endian. LSNs are integers, see :mod:`connectors.postgres.lsn`. Timestamps are
microseconds since 2000-01-01 UTC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, Literal, TypeAlias

import msgspec


class Unchanged(Enum):
    """The one value that stands for "TOASTed, and not changed by this update"."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
Value: TypeAlias = bytes | str | Literal[Unchanged.UNCHANGED] | None
Row: TypeAlias = list[Value]


class DecodeError(ValueError):
    """The input is not valid pgoutput. Names the message type and the byte at which reading failed."""

    def __init__(self, what: str, *, message_type: str, offset: int) -> None:
        super().__init__(f"pgoutput message {message_type!r}, offset {offset}: {what}")
        self.message_type = message_type
        self.offset = offset


class Begin(msgspec.Struct, frozen=True):
    """A transaction starts. ``final_lsn`` is where its commit record begins."""

    final_lsn: int
    commit_time_us: int
    xid: int


class Commit(msgspec.Struct, frozen=True):
    """A transaction ends. ``end_lsn`` is the first byte after its commit record."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_time_us: int


class Origin(msgspec.Struct, frozen=True):
    """The transaction was replicated from another server."""

    commit_lsn: int
    name: str


class Column(msgspec.Struct, frozen=True):
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


class Relation(msgspec.Struct, frozen=True):
    """A table's shape, valid for the rows that follow until it is sent again."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    xid: int | None = None


class Type(msgspec.Struct, frozen=True):
    """A type that is not built in."""

    oid: int
    namespace: str
    name: str
    xid: int | None = None


class Insert(msgspec.Struct, frozen=True):
    relation_oid: int
    values: Row
    xid: int | None = None


class Update(msgspec.Struct, frozen=True):
    """``old`` holds the key columns (``old_is_key``) or the whole old row, where they were sent."""

    relation_oid: int
    values: Row
    old: Row | None
    old_is_key: bool
    xid: int | None = None


class Delete(msgspec.Struct, frozen=True):
    relation_oid: int
    old: Row
    old_is_key: bool
    xid: int | None = None


class Truncate(msgspec.Struct, frozen=True):
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


class LogicalMessage(msgspec.Struct, frozen=True):
    """Written by ``pg_logical_emit_message``. One that is not transactional comes at any place."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    xid: int | None = None


class StreamStart(msgspec.Struct, frozen=True):
    """A block of a transaction that is still in progress begins."""

    xid: int
    is_first: bool


class StreamStop(msgspec.Struct, frozen=True):
    """The open block ends; its transaction may go on in later blocks."""


class StreamCommit(msgspec.Struct, frozen=True):
    xid: int
    flags: int
    commit_lsn: int
    end_lsn: int
    commit_time_us: int


class StreamAbort(msgspec.Struct, frozen=True):
    """A streamed transaction (``subxid == xid``) or one subtransaction of it was rolled back."""

    xid: int
    subxid: int


Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
)

INSERT: Final = ord("I")
"""First byte of an Insert, for readers that skip rows without decoding them."""

_INSERT_HEAD = struct.Struct(">xIcH")
_INSERT_HEAD_IN_STREAM = struct.Struct(">xIIcH")
_LENGTH = struct.Struct(">I").unpack_from
_NULL, _TOASTED, _TEXT, _BINARY = b"nutb"


class _MalformedError(Exception):
    """Raised while reading one message; becomes a DecodeError that knows the message's type."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


class _Cursor:
    """Reads one message from front to back and never past its end."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise _MalformedError(f"needs {size} bytes, {len(self.data) - self.position} are left", self.position)
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str:
        """A string up to its zero byte."""
        end = self.data.find(b"\0", self.position)
        if end < 0:
            raise _MalformedError("a string without its closing zero byte", self.position)
        start, self.position = self.position, end + 1
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise _MalformedError("a string that is not UTF-8", start + error.start) from None

    def letter(self, allowed: bytes) -> bytes:
        letter = self.take(1)
        if letter not in allowed or not letter:
            raise _MalformedError(f"expected one of {allowed.decode()}, got {letter!r}", self.position - 1)
        return letter

    def row(self) -> Row:
        count = self.unsigned(2)
        values, self.position = _values(self.data, self.position, count)
        return values

    def end(self) -> None:
        left = len(self.data) - self.position
        if left:
            raise _MalformedError(f"{left} bytes are left over", self.position)


def _values(data: bytes, position: int, count: int) -> tuple[Row, int]:
    """``count`` column values from ``position``, and the position after them.

    The hot loop of the connector. It slices without checking each length: a value that is cut off
    pushes ``position`` past the end, where the check after the loop finds it.
    """
    values: Row = []
    append = values.append
    try:
        for _ in range(count):
            kind = data[position]
            if kind == _BINARY:
                start = position + 5
                position = start + _LENGTH(data, position + 1)[0]
                append(data[start:position])
            elif kind == _NULL:
                position += 1
                append(None)
            elif kind == _TEXT:
                start = position + 5
                position = start + _LENGTH(data, position + 1)[0]
                append(data[start:position].decode())
            elif kind == _TOASTED:
                position += 1
                append(UNCHANGED)
            else:
                raise _MalformedError(f"unknown kind of column value {chr(kind)!r}", position)
    except (IndexError, struct.error):
        raise _MalformedError("the column values are cut off", min(position, len(data))) from None
    except UnicodeDecodeError as error:
        raise _MalformedError("a text value that is not UTF-8", start + error.start) from None
    if position > len(data):
        raise _MalformedError("the last column value is cut off", len(data))
    return values, position


class Decoder:
    """Decodes the messages of one replication stream, in their order."""

    def __init__(self) -> None:
        self._in_stream = False
        self._readers: dict[int, Callable[[_Cursor], Message]] = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("O"): self._origin,
            ord("R"): self._relation,
            ord("Y"): self._type,
            ord("U"): self._update,
            ord("D"): self._delete,
            ord("T"): self._truncate,
            ord("M"): self._message,
            ord("S"): self._stream_start,
            ord("E"): self._stream_stop,
            ord("c"): self._stream_commit,
            ord("A"): self._stream_abort,
        }

    def decode(self, data: bytes, offset: int = 0) -> Message:
        """The message that fills ``data`` from ``offset`` to its end.

        Raises DecodeError if it is truncated, has bytes left over, or is of an unknown kind.
        """
        try:
            kind = data[offset]
        except IndexError:
            raise DecodeError("empty message", message_type="", offset=offset) from None
        if kind == INSERT:
            return self.decode_insert(data, offset)
        try:
            reader = self._readers.get(kind)
            if reader is None:
                raise _MalformedError("unknown message type", offset)
            cursor = _Cursor(data, offset + 1)
            message = reader(cursor)
            cursor.end()
            return message
        except _MalformedError as error:
            raise DecodeError(error.what, message_type=chr(kind), offset=error.offset) from None

    def decode_insert(self, data: bytes, offset: int = 0) -> Insert:
        """Like decode, for a message whose first byte is INSERT: nearly all of the traffic."""
        try:
            return self._insert(data, offset)
        except _MalformedError as error:
            raise DecodeError(error.what, message_type="I", offset=error.offset) from None

    def _insert(self, data: bytes, offset: int) -> Insert:
        xid: int | None = None
        head = _INSERT_HEAD_IN_STREAM if self._in_stream else _INSERT_HEAD
        try:
            if self._in_stream:
                xid, relation_oid, marker, count = head.unpack_from(data, offset)
            else:
                relation_oid, marker, count = head.unpack_from(data, offset)
        except struct.error:
            raise _MalformedError("the head is cut off", len(data)) from None
        if marker != b"N":
            raise _MalformedError(f"expected a new row 'N', got {marker!r}", offset + head.size - 3)
        values, end = _values(data, offset + head.size, count)
        if end != len(data):
            raise _MalformedError(f"{len(data) - end} bytes are left over", end)
        return Insert(relation_oid, values, xid)

    def _xid(self, cursor: _Cursor) -> int | None:
        return cursor.unsigned(4) if self._in_stream else None

    @staticmethod
    def _begin(cursor: _Cursor) -> Begin:
        return Begin(cursor.unsigned(8), cursor.signed(8), cursor.unsigned(4))

    @staticmethod
    def _commit(cursor: _Cursor) -> Commit:
        return Commit(cursor.unsigned(1), cursor.unsigned(8), cursor.unsigned(8), cursor.signed(8))

    @staticmethod
    def _origin(cursor: _Cursor) -> Origin:
        return Origin(cursor.unsigned(8), cursor.text())

    def _relation(self, cursor: _Cursor) -> Relation:
        xid = self._xid(cursor)
        oid, namespace, name = cursor.unsigned(4), cursor.text(), cursor.text()
        identity = cursor.letter(b"dnfi").decode()
        columns = []
        for _ in range(cursor.unsigned(2)):
            flags = cursor.unsigned(1)
            column = Column(cursor.text(), cursor.unsigned(4), cursor.signed(4), bool(flags & 1))
            columns.append(column)
        # An empty namespace is how the protocol writes pg_catalog.
        return Relation(oid, namespace or "pg_catalog", name, identity, tuple(columns), xid)

    def _type(self, cursor: _Cursor) -> Type:
        xid = self._xid(cursor)
        return Type(cursor.unsigned(4), cursor.text() or "pg_catalog", cursor.text(), xid)

    def _update(self, cursor: _Cursor) -> Update:
        xid = self._xid(cursor)
        relation_oid = cursor.unsigned(4)
        marker = cursor.letter(b"KON")
        old: Row | None = None
        if marker != b"N":
            old = cursor.row()
            cursor.letter(b"N")
        return Update(relation_oid, cursor.row(), old, marker == b"K", xid)

    def _delete(self, cursor: _Cursor) -> Delete:
        xid = self._xid(cursor)
        relation_oid = cursor.unsigned(4)
        marker = cursor.letter(b"KO")
        return Delete(relation_oid, cursor.row(), marker == b"K", xid)

    def _truncate(self, cursor: _Cursor) -> Truncate:
        xid = self._xid(cursor)
        count, options = cursor.unsigned(4), cursor.unsigned(1)
        oids = struct.unpack(f">{count}I", cursor.take(4 * count))
        return Truncate(oids, bool(options & 1), bool(options & 2), xid)

    def _message(self, cursor: _Cursor) -> LogicalMessage:
        xid = self._xid(cursor)
        flags, lsn, prefix = cursor.unsigned(1), cursor.unsigned(8), cursor.text()
        return LogicalMessage(bool(flags & 1), lsn, prefix, cursor.take(cursor.unsigned(4)), xid)

    def _stream_start(self, cursor: _Cursor) -> StreamStart:
        if self._in_stream:
            raise _MalformedError("a streamed block begins inside another", cursor.position - 1)
        message = StreamStart(cursor.unsigned(4), cursor.unsigned(1) == 1)
        cursor.end()
        self._in_stream = True
        return message

    def _stream_stop(self, cursor: _Cursor) -> StreamStop:
        if not self._in_stream:
            raise _MalformedError("no streamed block is open", cursor.position - 1)
        cursor.end()
        self._in_stream = False
        return StreamStop()

    @staticmethod
    def _stream_commit(cursor: _Cursor) -> StreamCommit:
        return StreamCommit(
            cursor.unsigned(4),
            cursor.unsigned(1),
            cursor.unsigned(8),
            cursor.unsigned(8),
            cursor.signed(8),
        )

    @staticmethod
    def _stream_abort(cursor: _Cursor) -> StreamAbort:
        return StreamAbort(cursor.unsigned(4), cursor.unsigned(4))
