"""Which rows of the tables the topics do not hold, by id.

A row counts as published while a record in its route's topic carries its id, or the quarantine has an entry for it.
What a topic held once and dropped, by its retention, cannot be told from what it never held. So rows that are older
than what it surely still holds are left alone, unless nothing was streamed since they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import psycopg
from confluent_kafka import Message

from connectors.errors import ConfigurationError
from connectors.kafka.client import headers_of
from connectors.kafka.topic_contents import TopicExtent, read_records, topic_extents
from connectors.postgres.pgoutput import Row
from connectors.postgres.snapshot import Since, now_us, oldest_row_us, read_table
from connectors.published_ids import PublishedIds
from connectors.router import BoundRoute, Route, bind

ROWS_BETWEEN_DUTIES: Final = 1_000
NO_ID: Final = "no record carries an id; its route needs one that a header carries"
EPOCH_UNIX_MS: Final = 946_684_800_000  # 2000-01-01 UTC
# Clocks of brokers, connector and database may differ by as much.
CLOCK_SLACK_US: Final = 10 * 60 * 1_000_000
# A row is written before its transaction commits, and that may take as long.
TRANSACTION_SLACK_US: Final = 10 * 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """Which rows of a table are looked at: those ``since`` (None: all). ``reads_topics``: they may
    hold some of them."""

    route: Route
    since: Since | None
    reads_topics: bool


def scope_of(route: Route, extents: Sequence[TopicExtent], *, now_us: int, as_of_us: int | None) -> Scope:
    """Pure. ``extents`` are of the route's topics; ``as_of_us`` is the time that the position before stands for, None
    where that is not known. Raises ConfigurationError where it cannot be told which rows are published.
    """
    if all(extent.is_untouched for extent in extents):
        return Scope(route, None, reads_topics=False)
    dropped = [extent for extent in extents if extent.has_dropped]
    if "publish" in (route.updates, route.deletes):
        raise _cannot_tell(route, "it publishes updates or deletes, which no table remembers")
    if id_header(route) is None and (route.id is not None or dropped):
        raise _cannot_tell(route, NO_ID)
    if route.id is not None and any(extent.is_compacted for extent in extents):
        raise _cannot_tell(route, "records leave a compacted topic early")
    if not dropped:
        return Scope(route, None, reads_topics=True)
    if route.time is None:
        raise _cannot_tell(route, "records were dropped, and its route has no time that tells old rows")
    known = None if as_of_us is None else as_of_us - TRANSACTION_SLACK_US
    if known is None and any(extent.drops_by_size for extent in dropped):
        raise _cannot_tell(route, "records are dropped by size, and there is no position")
    kept = [
        now_us - extent.retention_ms * 1000 + CLOCK_SLACK_US
        for extent in dropped
        if extent.retention_ms is not None and not extent.drops_by_size
    ]
    bounds = ([max(kept)] if kept else []) + ([] if known is None else [known])
    if not kept and not any(extent.drops_by_size for extent in dropped):
        return Scope(route, None, reads_topics=True)  # somebody deleted records: they are missing
    return Scope(route, Since(route.time, min(bounds)), reads_topics=True)


def id_header(route: Route) -> str | None:
    """The header that carries the route's id."""
    return next((header.name for header in route.headers if header.column == route.id), None)


def _cannot_tell(route: Route, because: str) -> ConfigurationError:
    return ConfigurationError(
        f"which rows of table {route.name} are in topic {', '.join(route.topics)} cannot be told: {because}. Mend that,"
        " or delete the topic and create it again, so that the whole table is published anew"
    )


class MissingRows:
    """Knows what the topics hold, and reads of a table what they do not. Use it with ``with``."""

    def __init__(self, scopes: Iterable[Scope], published: PublishedIds, while_waiting: Callable[[], None]) -> None:
        self.scopes = tuple(scopes)
        self._published = published
        self._while_waiting = while_waiting
        self.seen = 0
        """Rows looked at, those that are published included."""

    @classmethod
    def find(
        cls,
        connection: psycopg.Connection,
        kafka: Mapping[str, Any],
        routes: Iterable[Route],
        quarantine_topic: str,
        *,
        database: str,
        as_of_us: int | None,
        while_waiting: Callable[[], None],
    ) -> Self:
        """Read the topics as far back as the tables go. Changes nothing, and takes as long as reading them takes.

        Raises ConfigurationError as :func:`scope_of` does, and what reading the topics and tables raises.
        """
        routes = tuple(routes)
        extents = topic_extents(
            kafka, [quarantine_topic, *(topic for route in routes for topic in route.topics)], while_waiting
        )
        now = now_us(connection)
        scopes = [
            scope_of(route, [extents[topic] for topic in route.topics], now_us=now, as_of_us=as_of_us)
            for route in routes
        ]
        published = PublishedIds()
        try:
            for scope in scopes:
                reach = _Reach.of(connection, scope) if scope.reads_topics else None
                if reach is not None:
                    for topic in scope.route.topics:
                        _read_topic(published, kafka, reach, extents[topic], while_waiting)
            tables = {route.name for route in routes if route.id is not None}
            _read_quarantine(published, kafka, (database, tables), extents[quarantine_topic], while_waiting)
        except BaseException:
            published.close()
            raise
        return cls(scopes, published, while_waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._published.close()

    def of(self, connection: psycopg.Connection, scope: Scope, *, binary: bool) -> Iterator[tuple[BoundRoute, Row]]:
        """The missing rows of one table, in the route's snapshot order. Raises what read_table and bind raise."""
        route = scope.route
        bound: BoundRoute | None = None
        for relation, row in read_table(
            connection,
            route.namespace,
            route.table,
            route.columns,
            route.snapshot_order,
            binary=binary,
            since=scope.since,
        ):
            self.seen += 1
            if self.seen % ROWS_BETWEEN_DUTIES == 0:
                self._while_waiting()
            bound = bound or bind(route, relation)
            if not self._holds(bound, row):
                yield bound, row

    def _holds(self, bound: BoundRoute, row: Row) -> bool:
        # Without an id that can be read, a row is what its route makes of it: a refusal, or a request for text.
        if self._published.is_empty:
            return False
        text = bound.identify(row).id
        return text is not None and self._published.holds(bound.table, text.encode())


@dataclass(frozen=True, slots=True)
class _Reach:
    """How far back topics have to be read for a table: None means from their beginning."""

    route: Route
    since_ms: int | None

    @classmethod
    def of(cls, connection: psycopg.Connection, scope: Scope) -> Self | None:
        """None for a table without rows, which misses nothing."""
        route = scope.route
        if route.time is None:
            return cls(route, None)
        oldest = oldest_row_us(connection, route.namespace, route.table, route.time, scope.since)
        return None if oldest is None else cls(route, _unix_ms(oldest - CLOCK_SLACK_US))


def _read_topic(
    published: PublishedIds,
    kafka: Mapping[str, Any],
    reach: _Reach,
    extent: TopicExtent,
    while_waiting: Callable[[], None],
) -> None:
    route = reach.route
    header = id_header(route)
    ours = others = 0
    for messages in read_records(kafka, extent, reach.since_ms, while_waiting):
        found = [] if header is None else [_header(message, header) for message in messages]
        ids = [one for one in found if one is not None]
        published.add(route.name, ids)
        ours, others = ours + len(ids), others + len(messages) - len(ids)
    # Records without the header may be of other writers; where none has it, they are rows from before it was configured.
    if others and not ours:
        raise _cannot_tell(route, NO_ID)


class _Entry(msgspec.Struct):
    """What matters here of :class:`connectors.quarantine.QuarantinedRow`."""

    table: str
    database: str = ""
    id: str | None = None


def _read_quarantine(
    published: PublishedIds,
    kafka: Mapping[str, Any],
    ours: tuple[str, set[str]],
    extent: TopicExtent,
    while_waiting: Callable[[], None],
) -> None:
    """``ours`` is the database and its tables that count."""
    database, tables = ours
    decoder = msgspec.json.Decoder(_Entry)
    for messages in read_records(kafka, extent, None, while_waiting):
        for message in messages:
            try:
                entry = decoder.decode(message.value() or b"")
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # of somebody else
            found = _header(message, "id") if entry.id is None else entry.id.encode()
            if entry.table in tables and entry.database in ("", database) and found is not None:
                published.add(entry.table, [found])


def _unix_ms(moment_us: int) -> int:
    """Kafka's form of a moment in microseconds since 2000."""
    return max(0, moment_us // 1000 + EPOCH_UNIX_MS)


def _header(message: Message, name: str) -> bytes | None:
    """A header's content; of one that is repeated, the last counts."""
    return headers_of(message).get(name)
