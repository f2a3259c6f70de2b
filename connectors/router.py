"""What a row becomes: topic, key, value and headers. Pure, and configured by column names.

A :class:`Route` belongs to one table. The router binds it to the columns that the stream announces
(and binds it again when they change), so that a row costs index look-ups only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from connectors.postgres.pgoutput import UNCHANGED, Relation, Value
from connectors.postgres.values import VALUE_ERRORS, BinaryUnsupportedError, Codec, codec_of


class RouteError(Exception):
    """A route does not fit its table: the configuration or the table must change."""


class RowError(Exception):
    """This one row cannot become a record. Others of its table can."""


class TextFormNeededError(Exception):
    """A routed column has a type whose binary form is not known: the stream must send text."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header from a column. NULL leaves the header out; so does the text ``leave_out``."""

    name: str
    column: str
    leave_out: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """The record's value is one column: ``bytea`` byte for byte, other types as text. NULL is null."""

    column: str


@dataclass(frozen=True, slots=True)
class JsonValue:
    """The record's value is a JSON object of these columns, in this order, by their own names."""

    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One table and what its inserted rows become.

    ``id`` names the column whose text identifies a row, for ever; it should also be the header ``id``, by which rows
    that are in the topic already are known. ``snapshot_order`` names columns that order rows as they were written, for
    rows older than the slot; the first of them should begin an index. A row that cannot be published goes into
    quarantine; ``later_rows_of_key`` says whether later rows of its key pass it, or wait there behind it.

    ``time`` names a column with the moment at which a row was written, by which catching up knows the rows whose
    records the topic may have dropped already. No record's timestamp may be earlier than its row's time.
    """

    namespace: str
    table: str
    topic: str
    key: str
    value: ColumnValue | JsonValue
    headers: tuple[Header, ...] = ()
    id: str | None = None
    time: str | None = None
    snapshot_order: tuple[str, ...] = ()
    later_rows_of_key: Literal["pass", "wait"] = "pass"

    @property
    def name(self) -> str:
        return f"{self.namespace}.{self.table}"

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns by which a row is found again in its table, best for an index first."""
        return tuple(dict.fromkeys((*self.snapshot_order, *(() if self.id is None else (self.id,)))))

    @property
    def record_columns(self) -> tuple[str, ...]:
        """Every column that a record is made of, each once."""
        value = (self.value.column,) if isinstance(self.value, ColumnValue) else self.value.columns
        return tuple(dict.fromkeys((self.key, *value, *(header.column for header in self.headers))))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the route reads, each once."""
        return tuple(dict.fromkeys((*self.record_columns, *self.identity)))


# Kafka allows null values too; none are written here.
HeaderPair: TypeAlias = tuple[str, str | bytes | None]


class Record(msgspec.Struct, frozen=True):
    """What goes to Kafka. Header values are UTF-8."""

    topic: str
    key: bytes
    value: bytes | None
    headers: list[HeaderPair]


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """Which row it is, as far as its columns can be read: canonical texts."""

    key: bytes | None
    id: str | None
    columns: dict[str, str]
    """Of :attr:`Route.identity`, by name."""


@dataclass(frozen=True, slots=True)
class BoundRoute:
    """A route that knows where its table's columns are.

    ``to_record`` raises RowError for a row that cannot be published and TextFormNeededError for a type
    that the stream should send as text. ``identify`` is for those rows: it raises nothing.
    """

    route: Route
    table: str
    topic: str
    to_record: Callable[[Sequence[Value]], Record]
    identify: Callable[[Sequence[Value]], RowIdentity]


class Router:
    """The routes of one connector, bound to the relations that its stream has announced."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        for route in routes:
            if (route.namespace, route.table) in self._routes:
                raise RouteError(f"table {route.name} has two routes")
            self._routes[route.namespace, route.table] = route

    def bind(self, relation: Relation) -> BoundRoute | None:
        """This relation's rows as records, or None where no route wants them.

        Raises RouteError if the route names a column that the relation lacks.
        """
        route = self._routes.get((relation.namespace, relation.name))
        return None if route is None else bind(route, relation)


def bind(route: Route, relation: Relation) -> BoundRoute:
    """See :meth:`Router.bind`."""
    columns = {column.name: (index, codec_of(column.type_oid)) for index, column in enumerate(relation.columns)}

    def column(name: str) -> tuple[int, Codec]:
        try:
            return columns[name]
        except KeyError:
            known = ", ".join(columns)
            raise RouteError(f"table {route.name} has no column {name!r} (it has: {known})") from None

    topic, key_name = route.topic, route.key
    key_index, key_codec = column(key_name)
    header_plan = [
        (header.name, *column(header.column), None if header.leave_out is None else header.leave_out.encode())
        for header in route.headers
    ]
    # Looked up once: the loop below runs for every row, and calls no more than it must.
    fast_plan = [
        (name, index, None if codec.is_textual else codec.from_binary, codec.from_text, leave_out)
        for name, index, codec, leave_out in header_plan
    ]
    value_of = _bind_value(route.value, column)

    def to_record(values: Sequence[Value]) -> Record:
        try:
            key = values[key_index]
            if key is None or key is UNCHANGED:
                raise RowError(f"key column {key_name!r} is {'NULL' if key is None else 'unchanged'}")
            headers: list[HeaderPair] = []
            for name, index, from_binary, from_text, leave_out in fast_plan:
                value = values[index]
                if type(value) is bytes:
                    content = value if from_binary is None else from_binary(value)
                elif value is None:
                    continue
                elif value is UNCHANGED:
                    raise RowError(f"header {name!r} is unchanged, so its value was not sent")
                else:
                    content = from_text(str(value))
                if content != leave_out:
                    headers.append((name, content))
            return Record(topic, key_codec.text(key), value_of(values), headers)
        except BinaryUnsupportedError:
            raise TextFormNeededError(route.name) from None
        except IndexError:
            raise RowError(f"a row of {len(values)} values for a table of {len(columns)} columns") from None
        except VALUE_ERRORS as error:
            raise RowError(f"a column value cannot be read: {error}") from None

    identity_plan = [(name, *column(name)) for name in route.identity]

    def identify(values: Sequence[Value]) -> RowIdentity:
        texts = ((name, _text_of(values, index, codec)) for name, index, codec in identity_plan)
        columns = {name: text for name, text in texts if text is not None}
        found_id = None if route.id is None else columns.get(route.id)
        key = _text_of(values, key_index, key_codec)
        return RowIdentity(None if key is None else key.encode(), found_id, columns)

    return BoundRoute(route, route.name, topic, to_record, identify)


def _text_of(values: Sequence[Value], index: int, codec: Codec) -> str | None:
    """A cell's canonical text; None where there is none, or it cannot be read."""
    try:
        cell = values[index]
        return None if cell is None or cell is UNCHANGED else codec.text(cell).decode()
    except (BinaryUnsupportedError, *VALUE_ERRORS):
        return None


def _bind_value(
    value: ColumnValue | JsonValue, column: Callable[[str], tuple[int, Codec]]
) -> Callable[[Sequence[Value]], bytes | None]:
    if isinstance(value, ColumnValue):
        return _bind_column_value(value.column, *column(value.column))
    members = [(name, *column(name)) for name in value.columns]
    plan = [(msgspec.json.encode(name) + b":", name, index, codec.json) for name, index, codec in members]

    def json_object(values: Sequence[Value]) -> bytes:
        parts: list[bytes] = []
        for prefix, name, index, to_json in plan:
            cell = values[index]
            if cell is UNCHANGED:
                raise RowError(f"column {name!r} is unchanged, so its value was not sent")
            parts.append(prefix + (b"null" if cell is None else to_json(cell)))
        return b"{" + b",".join(parts) + b"}"

    return json_object


def _bind_column_value(name: str, index: int, codec: Codec) -> Callable[[Sequence[Value]], bytes | None]:
    body = codec.body

    def column_body(values: Sequence[Value]) -> bytes | None:
        cell = values[index]
        if cell is UNCHANGED:
            raise RowError(f"value column {name!r} is unchanged, so its value was not sent")
        return None if cell is None else body(cell)

    return column_body
