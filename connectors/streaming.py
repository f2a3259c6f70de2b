"""The hot loop: decoded changes into Kafka transactions, for as long as both sides answer."""

from __future__ import annotations

import time
from typing import Final

import msgspec
import structlog

from connectors.config import ConnectorConfig
from connectors.control_session import LOOK_SECONDS, ControlSession
from connectors.errors import TransientError
from connectors.kafka.position import Position
from connectors.kafka.sink import TransactionalSink
from connectors.postgres.framing import XLOG_HEADER_BYTES
from connectors.postgres.lsn import format_lsn
from connectors.postgres.pgoutput import (
    INSERT,
    Begin,
    Commit,
    Decoder,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
)
from connectors.postgres.replication import CONFIRM_INTERVAL_SECONDS, ReplicationStream
from connectors.progress import Progress
from connectors.publisher import Publisher
from connectors.router import BoundRoute, Router
from connectors.status import ConnectorStatus
from connectors.stop import StopSignal

_log = structlog.get_logger(__name__)

MESSAGES_BETWEEN_DUTIES: Final = 1_000


class Streaming:
    """Streams from a stored position until the stop signal is set.

    A Kafka transaction closes after so many rows or bytes, and as soon as nothing more has arrived. Its size
    is independent of the source's transactions: large ones pass in parts, small ones together.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        router: Router,
        stop: StopSignal,
        status: ConnectorStatus,
        *,
        stream: ReplicationStream,
        sink: TransactionalSink,
        position: Position,
        control: ControlSession,
    ) -> None:
        self._config = config
        self._router = router
        self._stop = stop
        self._status = status
        self._stream = stream
        self._sink = sink
        self._stored = position
        self._progress = Progress(position.lsn, position.row)
        self._control = control
        self._publisher = Publisher(sink, config.quarantine_topic, control.holding)
        # Bound by the first row that is to be published: rows that are only skipped may have a shape that
        # the configuration does not know any more.
        self._relations: dict[int, Relation] = {}
        self._routes: dict[int, BoundRoute | None] = {}
        # Only what a stored position covers is ever confirmed.
        self._safe_lsn = self._progress.complete_lsn
        self._store_due = 0.0
        # Of the open Kafka transaction.
        self._rows = 0
        self._bytes = 0

    def run(self) -> None:
        """Returns when the stop signal is set and the open transaction is committed.

        Raises TransientError where a side fails, DecodeError, RouteError or TextFormNeededError.
        """
        self._status.enter("streaming")
        _log.info("streaming", slot=self._stored.slot, lsn=format_lsn(self._stored.lsn), row=self._stored.row)
        self._stream.confirm(self._safe_lsn, now=True)
        decoder = Decoder()
        next_buffered, decode_insert = self._stream.next_buffered, decoder.decode_insert
        next_change, on_insert = self._progress.next_change, self._on_insert
        until_duties = MESSAGES_BETWEEN_DUTIES
        while True:
            data = next_buffered()
            if data is None:
                if self._rows:
                    self._commit()
                elif self._is_over():
                    self._finish()
                    return
                else:
                    self._idle()
                continue
            if data[XLOG_HEADER_BYTES] == INSERT:
                # After a crash in a large transaction many rows come again: counting them is enough.
                if next_change():
                    on_insert(decode_insert(data, XLOG_HEADER_BYTES), len(data))
            else:
                self._on_other(decoder.decode(data, XLOG_HEADER_BYTES))
            until_duties -= 1
            if not until_duties:
                until_duties = MESSAGES_BETWEEN_DUTIES
                if self._is_over():
                    self._finish()
                    return
                self._stream.keep_alive()
                self._store_position_if_due()

    def _is_over(self) -> bool:
        """Whether to finish: because of the stop signal, or because an operator wants something else."""
        return self._stop.is_set() or self._control.wants_otherwise()

    def _on_insert(self, message: Insert, size: int) -> None:
        oid = message.relation_oid
        route = self._routes[oid] if oid in self._routes else self._bind(oid)
        if route is None:
            self._status.unrouted += 1
            return
        if not self._rows:
            self._status.busy_since = time.monotonic()
        self._publisher.publish(route, message.values, *self._progress.position)
        self._rows += 1
        self._bytes += size
        if self._rows >= self._config.transaction_rows or self._bytes >= self._config.transaction_bytes:
            self._commit()

    def _bind(self, relation_oid: int) -> BoundRoute | None:
        relation = self._relations.get(relation_oid)
        if relation is None:
            raise TransientError(f"PostgreSQL sent a row of a table that it had not described ({relation_oid})")
        route = self._routes[relation_oid] = self._router.bind(relation)
        return route

    def _on_other(self, message: Message) -> None:
        match message:
            case Begin(final_lsn=final_lsn, xid=xid):
                self._progress.begin(final_lsn)
                self._publisher.xid = xid
            case Commit(end_lsn=end_lsn):
                self._progress.commit(end_lsn)
            case Relation(oid=oid):
                self._relations[oid] = message
                self._routes.pop(oid, None)
            case Update() | Delete() | Truncate():
                # Counted like every change, so that positions keep their meaning; published never.
                if self._progress.next_change():
                    self._status.unrouted += 1
            case _:
                pass  # origins, types and logical messages carry no rows

    def _commit(self) -> None:
        """Store what the open transaction covers, then let PostgreSQL forget it."""
        lsn, row = self._progress.position
        position = msgspec.structs.replace(self._stored, lsn=lsn, row=row)
        self._sink.commit(position)
        now = time.monotonic()
        self._stored = position
        self._safe_lsn = self._progress.complete_lsn
        self._store_due = now + self._config.idle_position_seconds
        status = self._status
        status.rows += self._rows
        status.transactions += 1
        status.quarantined += self._publisher.quarantined
        self._publisher.quarantined = self._rows = self._bytes = 0
        status.last_lsn = lsn
        status.last_commit = now
        status.busy_since = None
        self._stream.confirm(self._safe_lsn)

    def _idle(self) -> None:
        """Nothing has arrived: use the time, then wait."""
        self._progress.idle(self._stream.server_lsn)
        self._store_position_if_due()
        if self._stream.has_unsent_confirmation:
            self._stream.wait(CONFIRM_INTERVAL_SECONDS, self._stop.fileno())
            self._stream.confirm(self._safe_lsn)
        else:
            self._stream.wait(min(LOOK_SECONDS, self._config.idle_position_seconds), self._stop.fileno())

    def _store_position_if_due(self) -> None:
        """Let the slot move on over WAL that holds no rows of ours, so that idle tables hold none back.

        The position is stored before it is confirmed: a slot ahead of it then always means that somebody
        else moved or remade the slot.
        """
        between = not self._rows and not self._progress.in_transaction
        if between and self._has_moved() and time.monotonic() >= self._store_due:
            self._commit()

    def _finish(self) -> None:
        """Leave as little as possible for the next start to skip."""
        if self._rows or self._has_moved():
            self._commit()
        self._stream.confirm(self._safe_lsn)
        self._stream.finish()

    def _has_moved(self) -> bool:
        return self._progress.position != (self._stored.lsn, self._stored.row)
