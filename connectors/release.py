"""Quarantined rows back into the stream, when an operator asks for it: read again from their table, and published.

It happens at the start of a session, between the fence and the stream, so that nothing else is open. The rows, the
marks that settle their entries, keys that are held no longer, and at last the answer to the request go into Kafka
transactions with the position, which stays as it is. Cut off at any moment, the next session goes on behind the last
mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec
import psycopg
import structlog

from connectors.config import ConnectorConfig
from connectors.control import REFUSALS_TOLD_MAX, Outcome, Refusal, Release, Subject, encode_subject, encode_value
from connectors.control_session import ControlSession
from connectors.errors import ConfigurationError
from connectors.kafka.client import headers_of
from connectors.kafka.log_reader import LogReader
from connectors.kafka.position import Position
from connectors.kafka.sink import RecordTooLargeError, TransactionalSink
from connectors.postgres.pgoutput import Relation, Row
from connectors.postgres.replication import connect
from connectors.postgres.snapshot import read_row
from connectors.quarantine import (
    MARK_ENTRIES_MAX,
    Mark,
    MarkState,
    QuarantinedRow,
    SettledEntries,
    decode_quarantine,
    mark_record,
)
from connectors.router import Record, Route, RouteError, RowError, bind

_log = structlog.get_logger(__name__)

READ_SECONDS: Final = 300.0
ANSWERS_KEPT: Final = 100
ROWS_BETWEEN_DUTIES: Final = 100


def release_rows(
    config: ConnectorConfig,
    control: ControlSession,
    sink: TransactionalSink,
    position: Position,
    while_waiting: Callable[[], None],
    *,
    binary: bool,
) -> None:
    """Carry out every release that is asked for. Raises TransientError where a side fails, and what the sink does."""
    for release_id, release in control.state.open_releases.items():
        with connect(config.conninfo, replication=False) as connection:
            work = _Work(
                config=config,
                control=control,
                sink=sink,
                position=position,
                while_waiting=while_waiting,
                connection=connection,
                binary=binary,
                release_id=release_id,
                release=release,
            )
            answered = work.run()
        control.state.releases[release_id] = answered
        _log.info(
            "released from quarantine",
            operator=release.operator,
            reason=release.reason,
            **{name: count for name, count in msgspec.structs.asdict(answered.outcome).items() if name != "refusals"}
            if answered.outcome
            else {},
        )


@dataclass(slots=True, kw_only=True)
class _Work:
    """One release."""

    config: ConnectorConfig
    control: ControlSession
    sink: TransactionalSink
    position: Position
    while_waiting: Callable[[], None]
    connection: psycopg.Connection
    binary: bool
    release_id: str
    release: Release
    settled: SettledEntries = field(default_factory=SettledEntries)
    whole_keys: set[tuple[str, bytes]] = field(default_factory=set)
    """Held keys of which at least one entry is asked for: their order is kept by releasing all."""
    blocked: set[tuple[str, bytes]] = field(default_factory=set)
    marks: dict[MarkState, list[int]] = field(default_factory=lambda: {"released": [], "gone": [], "given_up": []})
    counts: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    bytes_open: int = 0

    def run(self) -> Release:
        held = self.control.holding.keys
        for number, key, content in self._read():
            if isinstance(content, Mark):
                self.settled.add(content, number)
            elif (content.table, key) in held and self.release.selection.takes(number, content.table, key):
                self.whole_keys.add((content.table, key))
        for done, (number, key, content) in enumerate(self._read()):
            if done % ROWS_BETWEEN_DUTIES == 0:
                self.while_waiting()
            if isinstance(content, QuarantinedRow) and number not in self.settled and self._takes(number, content, key):
                self._take(number, key, content)
        return self._finish()

    def _read(self) -> Iterator[tuple[int, bytes, QuarantinedRow | Mark]]:
        """Entries and marks in their order, each with its number and key."""
        with LogReader(self.config.kafka, self.config.quarantine_topic, self.while_waiting) as reader:
            for message in reader.read_to_end(READ_SECONDS):
                content = decode_quarantine(message.value(), headers_of(message))
                if isinstance(content, QuarantinedRow) and content.database != self.position.database:
                    continue
                if content is not None:
                    yield message.offset() or 0, message.key() or b"", content

    def _takes(self, number: int, content: QuarantinedRow, key: bytes) -> bool:
        whole = (content.table, key) in self.whole_keys
        return whole or self.release.selection.takes(number, content.table, key)

    def _take(self, number: int, key: bytes, content: QuarantinedRow) -> None:
        """One entry: into the transaction with its row or without, or left where it is."""
        if (content.table, key) in self.blocked:
            self.counts["waiting"] += 1
            return
        try:
            record = self._record_of(content)
            if record is None:
                self._settle("gone", number)
            else:
                self.sink.add(record)
                self.bytes_open += len(record.value or b"")
                self._settle("released", number)
        except (RowError, RouteError, RecordTooLargeError, ConfigurationError) as error:
            if self.release.gives_up:
                self._settle("given_up", number)
                return
            self.counts["refused"] += 1
            if len(self.refusals) < REFUSALS_TOLD_MAX:
                self.refusals.append(Refusal(number, str(error)))
            if (content.table, key) in self.whole_keys:
                self.blocked.add((content.table, key))

    def _record_of(self, content: QuarantinedRow) -> Record | None:
        """The row as its route makes it now; None where the table does not hold it. Raises RowError for one that
        does not fit, ConfigurationError where its table cannot be read."""
        route = next((route for route in self.config.routes if route.name == content.table), None)
        if route is None:
            raise RowError(f"no route takes rows of table {content.table}")
        if not content.columns or not content.columns.keys() <= set(route.identity):
            raise RowError("nothing is known by which the row could be found: give its route an id")
        found = self._read_row(route, content)
        if found is None:
            return None
        relation, values = found
        return bind(route, relation).to_record(values)

    def _read_row(self, route: Route, content: QuarantinedRow) -> tuple[Relation, Row] | None:
        return read_row(
            self.connection, route.namespace, route.table, route.columns, content.columns, binary=self.binary
        )

    def _settle(self, state: MarkState, number: int) -> None:
        self.marks[state].append(number)
        self.counts[state] += 1
        config = self.config
        entries = sum(map(len, self.marks.values()))
        if entries >= min(MARK_ENTRIES_MAX, config.transaction_rows) or self.bytes_open >= config.transaction_bytes:
            self._commit()

    def _commit(self) -> None:
        release = self.release
        for state, numbers in self.marks.items():
            if numbers:
                mark = Mark(
                    state=state,
                    entries=tuple(numbers),
                    operator=release.operator,
                    reason=release.reason,
                    at=_now(),
                )
                self.sink.add(mark_record(self.config.quarantine_topic, mark))
                numbers.clear()
        self.sink.commit(self.position)
        self.bytes_open = 0

    def _finish(self) -> Release:
        holding = self.control.holding
        for table, key in self.whole_keys - self.blocked:
            self.sink.add(holding.free(table, key))
        outcome = Outcome(**self.counts, refusals=tuple(self.refusals))
        answered = msgspec.structs.replace(self.release, outcome=outcome)
        self.sink.add(self._control_record(self.release_id, answered))
        releases = self.control.state.releases
        finished = [release_id for release_id, release in releases.items() if release.outcome is not None]
        for release_id in finished[:-ANSWERS_KEPT]:
            self.sink.add(self._control_record(release_id, None))
            del releases[release_id]
        self._commit()
        return answered

    def _control_record(self, release_id: str, answer: Release | None) -> Record:
        subject = Subject(database=self.position.database, slot=self.config.slot, kind="release", release_id=release_id)
        value = None if answer is None else encode_value(answer)
        return Record(self.config.control_topic, encode_subject(subject), value, [])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
