"""A connector's configuration as a TOML file, see ``connectors/examples``. No I/O but reading the file.

In the tables ``postgres`` and ``kafka``, ``${NAME}`` stands for a variable of the environment, so that no secret has
to be in the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from connectors.config import ConnectorConfig
from connectors.debezium.profile import event_router_route
from connectors.errors import ConfigurationError
from connectors.route import ChangePolicy, ColumnValue, Header, JsonValue, Route, TopicByColumn
from connectors.start_plan import Repair

BYTES_MAX: Final = 1024 * 1024
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _Postgres(msgspec.Struct, forbid_unknown_fields=True):
    conninfo: str
    slot: str
    publication: str


class _Connector(msgspec.Struct, forbid_unknown_fields=True):
    """Names of our own topics, and bounds; what each means is told by :class:`ConnectorConfig`."""

    transactional_id: str
    positions_topic: str
    quarantine_topic: str
    control_topic: str
    transaction_rows: int | UnsetType = UNSET
    transaction_bytes: int | UnsetType = UNSET
    transaction_timeout_seconds: float | UnsetType = UNSET
    repair: Repair | UnsetType = UNSET
    held_keys_max: int | UnsetType = UNSET


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    column: str
    name: str | None = None
    leave_out: str | None = None
    null: Literal["leave_out", "keep"] = "leave_out"


class _Value(msgspec.Struct, forbid_unknown_fields=True):
    """One column, or a JSON object of several."""

    column: str | None = None
    empty: Literal["keep", "null", "blank_text_null"] = "keep"
    columns: tuple[str, ...] = ()


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    column: str
    topics: tuple[str, ...]
    pattern: str | UnsetType = UNSET
    replacement: str | UnsetType = UNSET


class _Route(msgspec.Struct, forbid_unknown_fields=True):
    """Either the fields from ``topic`` to ``id``, or ``event_router``."""

    table: str
    topic: str | _Topic | None = None
    key: str | None = None
    value: _Value | None = None
    headers: tuple[_Header, ...] = ()
    timestamp: str | None = None
    updates: ChangePolicy = "ignore"
    deletes: ChangePolicy = "ignore"
    id: str | None = None
    time: str | None = None
    snapshot_order: tuple[str, ...] = ()
    later_rows_of_key: Literal["pass", "wait"] = "pass"
    event_router: dict[str, str] | None = None
    topics: tuple[str, ...] = ()
    """Of the event router."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    postgres: _Postgres
    kafka: dict[str, str | int | float | bool]
    connector: _Connector
    route: tuple[_Route, ...]


def read_config(path: Path, environment: Mapping[str, str]) -> ConnectorConfig:
    """Read the file. Raises ConfigurationError with one line that names the file and what to change in it."""
    try:
        config = parse_config(tomllib.loads(_content(path)), environment)
        for name, value in config.kafka.items():
            if name.endswith(".location"):  # librdkafka opens it
                _check_that_it_ends(f"kafka.{name}", Path(str(value)))
        return config
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:  # a number may have too many digits, a list too many lists in it
        raise ConfigurationError(f"{path} is no TOML: {error}") from None


def _content(path: Path) -> str:
    """Raises OSError, UnicodeDecodeError or ConfigurationError."""
    _check_that_it_ends("it", path)
    with path.open("rb") as file:
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise ConfigurationError(f"it has more than {BYTES_MAX} bytes, which no configuration has")
    return content.decode()


def _check_that_it_ends(name: str, path: Path) -> None:
    """A start would wait for a pipe without a writer for ever. Raises ConfigurationError."""
    if path.is_fifo() or path.is_char_device() or path.is_block_device() or path.is_socket():
        raise ConfigurationError(f"{name} is a pipe, a device or a socket: name a regular file")


def parse_config(content: dict[str, Any], environment: Mapping[str, str]) -> ConnectorConfig:
    """The configuration that a TOML document says. Raises ConfigurationError."""
    for name in ("postgres", "kafka"):
        table = content.get(name)
        if isinstance(table, dict):
            content[name] = {key: _filled(f"{name}.{key}", value, environment) for key, value in table.items()}
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error)) from None
    if not file.route:
        raise ConfigurationError("there is no [[route]]: nothing would be published")
    return ConnectorConfig(
        conninfo=file.postgres.conninfo,
        slot=file.postgres.slot,
        publication=file.postgres.publication,
        kafka=file.kafka,
        routes=tuple(_route(route) for route in file.route),
        **_given(file.connector),
    )


def _given(table: msgspec.Struct) -> dict[str, Any]:
    """What the file says, so that everything else keeps the default of what it is for."""
    return {name: value for name, value in msgspec.structs.asdict(table).items() if value is not UNSET}


def _filled(place: str, value: object, environment: Mapping[str, str]) -> object:
    if not isinstance(value, str):
        return value

    def content(found: re.Match[str]) -> str:
        try:
            return environment[found[1]]
        except KeyError:
            raise ConfigurationError(f"{place} needs the environment variable {found[1]}, which is not set") from None

    return _VARIABLE.sub(content, value)


def _route(given: _Route) -> Route:
    namespace, dot, table = given.table.partition(".")
    if not dot or not namespace or not table:
        raise ConfigurationError(f"route {given.table!r}: name the table with its schema, as in public.outbox")
    if given.event_router is not None:
        return _by_event_router(given, namespace, table)
    if given.topics:
        raise ConfigurationError(f"route {given.table}: topics belong to event_router, or into topic")
    if given.topic is None or given.key is None or given.value is None:
        raise ConfigurationError(f"route {given.table}: it needs topic, key and value, or event_router")
    return Route(
        namespace=namespace,
        table=table,
        topic=given.topic if isinstance(given.topic, str) else TopicByColumn(**_given(given.topic)),
        key=given.key,
        value=_value(given.table, given.value),
        headers=tuple(Header(h.name or h.column, h.column, h.leave_out, h.null) for h in given.headers),
        timestamp=given.timestamp,
        updates=given.updates,
        deletes=given.deletes,
        id=given.id,
        time=given.time,
        snapshot_order=given.snapshot_order,
        later_rows_of_key=given.later_rows_of_key,
    )


def _by_event_router(given: _Route, namespace: str, table: str) -> Route:
    own: Sequence[str] = ("topic", "key", "value", "headers", "timestamp", "updates", "deletes", "id", "time")
    defaults = {field.name: field.default for field in msgspec.structs.fields(_Route)}
    for name in own:
        if getattr(given, name) != defaults[name]:
            raise ConfigurationError(f"route {given.table}: {name} follows from event_router, so leave it out")
    return event_router_route(
        namespace,
        table,
        given.event_router or {},
        topics=given.topics,
        snapshot_order=given.snapshot_order,
        later_rows_of_key=given.later_rows_of_key,
    )


def _value(table: str, value: _Value) -> ColumnValue | JsonValue:
    if (value.column is None) == (not value.columns):
        raise ConfigurationError(f"route {table}: value is one column, or a list of columns")
    return JsonValue(value.columns) if value.column is None else ColumnValue(value.column, value.empty)
