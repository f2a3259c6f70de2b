"""A route from the properties of Debezium's outbox event router, by its own names. Pure.

For the same table and properties, the records have the bytes, key and headers that
``io.debezium.transforms.outbox.EventRouter`` gives with these converters: ``StringConverter`` for key and headers, and
for the value ``BinaryDataConverter`` with a ``bytea`` payload, or ``StringConverter`` with a payload of text or JSON.
Keys and headers may be text, UUIDs, integers, booleans and JSON; Debezium writes other types in forms of its own.

Where ours differs on purpose: the topics that rows may go to are listed, and a row for another goes into quarantine
(Debezium has the broker make the topic); and so does a row whose key is NULL (Debezium publishes it under a Java
object's text). A property that would change the record in a way that is not supported is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeVar

from connectors.errors import ConfigurationError
from connectors.route import ChangePolicy, ColumnValue, Header, Route, TopicByColumn

_DEFAULTS: Final = {
    "table.field.event.id": "id",
    "table.field.event.key": "aggregateid",
    "table.field.event.payload": "payload",
    "table.fields.additional.placement": "",
    "table.op.invalid.behavior": "warn",
    "route.by.field": "aggregatetype",
    "route.topic.regex": "(?<routedByValue>.*)",
    "route.topic.replacement": "outbox.event.${routedByValue}",
    "route.tombstone.on.empty.payload": "false",
}
# Properties that have one supported value, and do nothing then.
_FIXED: Final = {
    "table.expand.json.payload": "false",
    "table.fields.additional.error.on.missing": "true",
}
# Debezium reads these columns for an envelope or a schema, neither of which a raw payload has.
_WITHOUT_EFFECT: Final = frozenset(("table.field.event.type", "table.json.payload.null.behavior"))
# An operation that is no insert: the router warns about it or stops. Deletes it drops in any case.
_UPDATES: Final[Mapping[str, ChangePolicy]] = {"warn": "ignore", "error": "ignore", "fatal": "refuse"}

_Choice = TypeVar("_Choice")

_PREFIX: Final = re.compile(r"transforms\.\w+\.")
_JAVA_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")


def event_router_route(
    namespace: str,
    table: str,
    properties: Mapping[str, str],
    *,
    topics: Sequence[str] = (),
    snapshot_order: Sequence[str] = (),
    later_rows_of_key: Literal["pass", "wait"] = "pass",
) -> Route:
    """The route of ``namespace.table``. ``properties`` may carry the prefix ``transforms.NAME.`` of a connector's file.

    ``topics`` may be left out where every row goes to the same topic. The other arguments are
    :class:`connectors.route.Route`'s. Raises ConfigurationError for a property that is unknown or not supported.
    """
    given = {_PREFIX.sub("", name, count=1): value for name, value in properties.items()}
    given.pop("type", None)
    for name, value in given.items():
        if name in _FIXED and value != _FIXED[name]:
            raise ConfigurationError(f"event router property {name} = {value!r} is not supported: leave it out")
        if name not in _DEFAULTS and name not in _FIXED and name not in _WITHOUT_EFFECT:
            raise ConfigurationError(f"event router property {name} is not supported: leave it out")
    wanted = {**_DEFAULTS, **given}
    event_id = wanted["table.field.event.id"]
    return Route(
        namespace=namespace,
        table=table,
        topic=_topic(wanted, topics),
        key=wanted["table.field.event.key"],
        value=ColumnValue(
            wanted["table.field.event.payload"],
            empty="blank_text_null" if _boolean(wanted, "route.tombstone.on.empty.payload") else "keep",
        ),
        headers=(Header("id", event_id, null="keep"), *_additional(wanted["table.fields.additional.placement"])),
        updates=_choice(wanted, "table.op.invalid.behavior", _UPDATES),
        id=event_id,
        snapshot_order=tuple(snapshot_order),
        later_rows_of_key=later_rows_of_key,
    )


def _topic(wanted: Mapping[str, str], topics: Sequence[str]) -> str | TopicByColumn:
    pattern, replacement = wanted["route.topic.regex"], wanted["route.topic.replacement"]
    if pattern == ".*" and not re.search(r"[$\\]", replacement):
        return replacement
    if not topics:
        raise ConfigurationError("the topic follows from a column: list every topic that rows may go to")
    return TopicByColumn(
        column=wanted["route.by.field"],
        topics=tuple(topics),
        pattern=_JAVA_NAMED_GROUP.sub("(?P<", pattern),
        replacement=replacement,
    )


def _additional(placement: str) -> list[Header]:
    """``column:header[:name]``, separated by commas."""
    headers = []
    for item in filter(None, (part.strip() for part in placement.split(","))):
        column, _, rest = item.partition(":")
        where, _, name = rest.partition(":")
        if where.lower() != "header":
            raise ConfigurationError(
                f"event router property table.fields.additional.placement: {item!r} is not supported, only headers are"
            )
        headers.append(Header(name or column, column, null="keep"))
    return headers


def _boolean(wanted: Mapping[str, str], name: str) -> bool:
    return _choice(wanted, name, {"true": True, "false": False})


def _choice(wanted: Mapping[str, str], name: str, choices: Mapping[str, _Choice]) -> _Choice:
    try:
        return choices[wanted[name].lower()]
    except KeyError:
        raise ConfigurationError(f"event router property {name} is one of {', '.join(choices)}") from None
