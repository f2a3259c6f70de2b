"""What shall become of one table's rows: the declaration, before any column is known. Pure.

Everything is named by columns, so that a route is configuration and nothing else. :mod:`connectors.router` binds a
route to the columns that the stream announces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ChangePolicy: TypeAlias = Literal["ignore", "publish", "refuse"]


@dataclass(frozen=True, slots=True)
class Header:
    """A header from a column. The text ``leave_out`` leaves the header out, and so does NULL, unless ``null`` says
    that it is to be there without a value."""

    name: str
    column: str
    leave_out: str | None = None
    null: Literal["leave_out", "keep"] = "leave_out"


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """The record's value is one column: ``bytea`` byte for byte, other types as text. NULL is null.

    With ``empty`` as ``null``, so is a value without any byte: a tombstone, by which a compacted topic forgets the key.
    As ``blank_text_null``, so is any text of nothing but blanks and control characters, and no ``bytea``.
    """

    column: str
    empty: Literal["keep", "null", "blank_text_null"] = "keep"


@dataclass(frozen=True, slots=True)
class JsonValue:
    """The record's value is a JSON object of these columns, in this order, by their own names."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicByColumn:
    """The topic follows from the text of a column.

    Where the regular expression ``pattern`` matches all of the text, the topic is ``replacement``, in which ``$1`` to
    ``$9`` and ``${name}`` stand for groups; otherwise it is the text itself. ``topics`` are all that may come out: a row
    for another topic goes into quarantine.
    """

    column: str
    topics: tuple[str, ...]
    pattern: str = "(.*)"
    replacement: str = "$1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One table and what its rows become.

    ``timestamp`` names a column whose moment the records carry: ``timestamptz``, ``timestamp`` in UTC, or milliseconds
    since 1970 as an integer; NULL and no column mean the time of publishing.

    Inserted rows are published. What becomes of ``updates`` and ``deletes``: they are ignored, and counted; published,
    a deletion as a record without a value under the key of the old row; or refused, into quarantine. The publication
    must publish them, and the table's replica identity must hold what a deletion is to tell.

    ``id`` names the column whose text identifies a row, for ever; it should also be the header ``id``, by which rows
    that are in the topic already are known. ``snapshot_order`` names columns that order rows as they were written, for
    rows older than the slot; the first of them should begin an index. A row that cannot be published goes into
    quarantine; ``later_rows_of_key`` says whether later rows of its key pass it, or wait there behind it.

    ``time`` names a column with the moment at which a row was written, by which catching up knows the rows whose
    records the topic may have dropped already. No record's timestamp may be earlier than its row's time.
    """

    namespace: str
    table: str
    topic: str | TopicByColumn
    key: str
    value: ColumnValue | JsonValue
    headers: tuple[Header, ...] = ()
    timestamp: str | None = None
    updates: ChangePolicy = "ignore"
    deletes: ChangePolicy = "ignore"
    id: str | None = None
    time: str | None = None
    snapshot_order: tuple[str, ...] = ()
    later_rows_of_key: Literal["pass", "wait"] = "pass"

    @property
    def name(self) -> str:
        return f"{self.namespace}.{self.table}"

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that rows may go to."""
        return (self.topic,) if isinstance(self.topic, str) else self.topic.topics

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns by which a row is found again in its table, best for an index first."""
        return tuple(dict.fromkeys((*self.snapshot_order, *(() if self.id is None else (self.id,)))))

    @property
    def record_columns(self) -> tuple[str, ...]:
        """Every column that a record is made of, each once."""
        value = (self.value.column,) if isinstance(self.value, ColumnValue) else self.value.columns
        topic = () if isinstance(self.topic, str) else (self.topic.column,)
        timestamp = () if self.timestamp is None else (self.timestamp,)
        headers = (header.column for header in self.headers)
        return tuple(dict.fromkeys((self.key, *value, *headers, *topic, *timestamp)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the route reads, each once."""
        return tuple(dict.fromkeys((*self.record_columns, *self.identity)))
