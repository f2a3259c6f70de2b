"""What a row becomes: topic, key, value, headers and timestamp. Pure.

A :class:`Route` belongs to one table. The router binds it to the columns that the stream announces
(and binds it again when they change), so that a row costs index look-ups only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from connectors.moments import MOMENT_TYPES, milliseconds_of
from connectors.postgres.pgoutput import UNCHANGED, Delete, Relation, Row, Update, Value
from connectors.postgres.values import VALUE_ERRORS, BinaryUnsupportedError, Codec, codec_of
from connectors.route import ChangePolicy, ColumnValue, Header, JsonValue, Route, TopicByColumn
from connectors.topic_pattern import TopicPattern, TopicPatternError

__all__ = ["ColumnValue", "Header", "JsonValue", "Route", "TopicByColumn"]  # most readers need both modules


class RouteError(Exception):
    """A route does not fit its table: the configuration or the table must change."""


class RowError(Exception):
    """This one row cannot become a record. Others of its table can."""


class TextFormNeededError(Exception):
    """A routed column has a type whose binary form is not known: the stream must send text."""


HeaderPair: TypeAlias = tuple[str, str | bytes | None]


class Record(msgspec.Struct, frozen=True):
    """What goes to Kafka. Header values are UTF-8. Without ``timestamp_ms``, since 1970, it is the time of publishing."""

    topic: str
    key: bytes
    value: bytes | None
    headers: list[HeaderPair]
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """Which row it is, as far as its columns can be read: canonical texts."""

    key: bytes | None
    id: str | None
    columns: dict[str, str]
    """Of :attr:`Route.identity`, by name."""


ToRecord: TypeAlias = Callable[[Sequence[Value]], Record]


@dataclass(frozen=True, slots=True)
class BoundRoute:
    """A route that knows where its table's columns are.

    ``to_record`` raises RowError for a row that cannot be published and TextFormNeededError for a type
    that the stream should send as text. ``identify`` is for those rows: it raises nothing. ``topic`` stands for the
    topic of a row that has none.
    """

    route: Route
    table: str
    topic: str
    to_record: ToRecord
    identify: Callable[[Sequence[Value]], RowIdentity]
    to_tombstone: ToRecord

    def of_change(self, change: Update | Delete) -> tuple[BoundRoute, Row] | None:
        """What to publish of an updated or a deleted row, and by which means; None where it is ignored."""
        policy, is_update = _policy(self.route, change), isinstance(change, Update)
        if policy == "ignore":
            return None
        values = _whole(change) if isinstance(change, Update) else change.old
        if policy == "publish":
            return replace(self, to_record=self.to_record if is_update else self.to_tombstone), values

        def refuse(_: Sequence[Value]) -> Record:
            raise RowError(f"{'updates' if is_update else 'deletes'} of table {self.table} are refused")

        return replace(self, to_record=refuse), values


def _policy(route: Route, change: Update | Delete) -> ChangePolicy:
    return route.updates if isinstance(change, Update) else route.deletes


def _whole(update: Update) -> Row:
    """The new row, with what an update left as it was from the old one, where all of that was sent."""
    if update.old is None or update.old_is_key or len(update.old) != len(update.values):
        return update.values
    return [old if new is UNCHANGED else new for new, old in zip(update.values, update.old, strict=True)]


class Router:
    """The routes of one connector, bound to the relations that its stream has announced."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        for route in routes:
            if (route.namespace, route.table) in self._routes:
                raise RouteError(f"table {route.name} has two routes")
            if route.later_rows_of_key == "wait" and (route.updates, route.deletes) != ("ignore", "ignore"):
                raise RouteError(
                    f"table {route.name}: later rows can wait only where updates and deletes are ignored, because a"
                    " release reads each row as it is then"
                )
            self._routes[route.namespace, route.table] = route

    def takes(self, relation: Relation, change: Update | Delete) -> bool:
        """Whether a route does anything with such changes of this relation's rows."""
        route = self._routes.get((relation.namespace, relation.name))
        return route is not None and _policy(route, change) != "ignore"

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

    key_name = route.key
    key_index, key_codec = column(key_name)
    header_plan = [
        (
            header.name,
            *column(header.column),
            None if header.leave_out is None else header.leave_out.encode(),
            header.null == "keep",
        )
        for header in route.headers
    ]
    # Looked up once: the loop below runs for every row, and calls no more than it must.
    fast_plan = [
        (name, index, None if codec.is_textual else codec.from_binary, codec.from_text, leave_out, keep_null)
        for name, index, codec, leave_out, keep_null in header_plan
    ]
    value_of = _bind_value(route.value, column)
    topic = route.topic if isinstance(route.topic, str) else None
    topic_of = None if isinstance(route.topic, str) else _bind_topic(route.topic, *column(route.topic.column))
    timestamp_of = None if route.timestamp is None else _bind_timestamp(route, relation, *column(route.timestamp))

    def convert(values: Sequence[Value], to_value: Callable[[Sequence[Value]], bytes | None], hint: str = "") -> Record:
        try:
            key = values[key_index]
            if key is None or key is UNCHANGED:
                raise RowError(f"key column {key_name!r} is {'NULL' if key is None else 'unchanged'}{hint}")
            headers: list[HeaderPair] = []
            for name, index, from_binary, from_text, leave_out, keep_null in fast_plan:
                value = values[index]
                if type(value) is bytes:
                    content = value if from_binary is None else from_binary(value)
                elif value is None:
                    if keep_null:
                        headers.append((name, None))
                    continue
                elif value is UNCHANGED:
                    raise RowError(f"header {name!r} is unchanged, so its value was not sent")
                else:
                    content = from_text(str(value))
                if content != leave_out:
                    headers.append((name, content))
            return Record(
                topic or topic_of(values),  # type: ignore[misc]  # one of them is there
                key_codec.text(key),
                to_value(values),
                headers,
                None if timestamp_of is None else timestamp_of(values),
            )
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

    return BoundRoute(
        route,
        route.name,
        route.topics[0],
        lambda values: convert(values, value_of),
        identify,
        lambda values: convert(values, _no_value, ", or not in the table's replica identity"),
    )


def _no_value(_: Sequence[Value]) -> None:
    return None


def _bind_topic(topic: TopicByColumn, index: int, codec: Codec) -> Callable[[Sequence[Value]], str]:
    try:
        pattern = TopicPattern(topic.pattern, topic.replacement, topic.topics)
    except TopicPatternError as error:
        raise RouteError(str(error)) from None

    def topic_of(values: Sequence[Value]) -> str:
        cell = values[index]
        if cell is None or cell is UNCHANGED:
            raise RowError(f"topic column {topic.column!r} is {'NULL' if cell is None else 'unchanged'}")
        text = codec.text(cell).decode()
        found = pattern.topic_of(text)
        if found is None:
            raise RowError(f"column {topic.column!r} is {text[:100]!r}, which gives none of the route's topics")
        return found

    return topic_of


def _bind_timestamp(
    route: Route, relation: Relation, index: int, codec: Codec
) -> Callable[[Sequence[Value]], int | None]:
    type_oid = relation.columns[index].type_oid
    if type_oid not in MOMENT_TYPES:
        raise RouteError(
            f"column {route.timestamp!r} of table {route.name} cannot be a record's timestamp:"
            " it must be timestamptz, timestamp, or bigint with milliseconds since 1970"
        )

    def timestamp_of(values: Sequence[Value]) -> int | None:
        cell = values[index]
        if cell is UNCHANGED:
            raise RowError(f"timestamp column {route.timestamp!r} is unchanged, so its value was not sent")
        return None if cell is None else milliseconds_of(codec.text(cell).decode())

    return timestamp_of


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
        return _bind_column_value(value, *column(value.column))
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


_BLANKS: Final = bytes(range(0x21))


def _is_never_empty(_: bytes) -> bool:
    return False


# By what counts as empty, and whether the value is raw bytes.
_EMPTIES: Final[dict[tuple[str, bool], Callable[[bytes], bool]]] = {
    ("keep", False): _is_never_empty,
    ("keep", True): _is_never_empty,
    ("null", False): lambda content: not content,
    ("null", True): lambda content: not content,
    ("blank_text_null", False): lambda content: not content.strip(_BLANKS),
    ("blank_text_null", True): _is_never_empty,
}


def _bind_column_value(value: ColumnValue, index: int, codec: Codec) -> Callable[[Sequence[Value]], bytes | None]:
    body = codec.body
    is_empty = _EMPTIES[value.empty, codec.is_raw]

    def column_body(values: Sequence[Value]) -> bytes | None:
        cell = values[index]
        if cell is UNCHANGED:
            raise RowError(f"value column {value.column!r} is unchanged, so its value was not sent")
        content = None if cell is None else body(cell)
        return None if content is None or is_empty(content) else content

    return column_body
