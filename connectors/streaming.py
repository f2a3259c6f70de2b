"""The hot loop: decoded changes into Kafka transactions, for as long as both sides answer."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from connectors.config import ConnectorConfig
from connectors.control_session import LOOK_SECONDS, ControlSession
from connectors.kafka.position import Position
from connectors.kafka.sink import RecordTooLargeError, TransactionalSink
from connectors.postgres.domains import Domains
from connectors.postgres.framing import XLOG_HEADER_BYTES
from connectors.postgres.lsn import format_lsn
from connectors.postgres.pgoutput import (
    INSERT,
    Begin,
    Commit,
    Decoder,
    Delete,
    Message,
    Relation,
    Truncate,
    Type,
    Update,
)
from connectors.postgres.replication import CONFIRM_INTERVAL_SECONDS, ReplicationStream
from connectors.progress import Progress
from connectors.publication_watch import PublicationWatch
from connectors.publisher import Publisher
from connectors.router import Router
from connectors.status import ConnectorStatus
from connectors.stop import StopSignal
from connectors.tables import Table, Tables
from connectors.unrolled import UNUSUAL

_log = structlog.get_logger(__name__)

MESSAGES_BETWEEN_DUTIES: Final = 1_000
CROWD_ROWS: Final = 100
CROWD_SECONDS: Final = 0.01
OID_START: Final = XLOG_HEADER_BYTES + 1
OID_END: Final = OID_START + 4

_GENERAL = (*UNUSUAL, RecordTooLargeError)


@dataclass(frozen=True, slots=True)
class _HandedOver:
    """A Kafka transaction that is being committed: what will be true once it is."""

    lsn: int
    complete_lsn: int
    rows: int
    bytes: int
    quarantined: int
    begun_at: float
    as_of_us: int | None


class Streaming:
    """Streams from a stored position until the stop signal is set.

    A Kafka transaction closes after so many rows or bytes, and as soon as nothing more has arrived and the one before
    it is committed; where rows come in crowds, a few milliseconds after it began. Its size is independent of the
    source's transactions: large ones pass in parts, small ones together.
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
        watch: PublicationWatch,
    ) -> None:
        self._config = config
        self._stop = stop
        self._status = status
        self._stream = stream
        self._sink = sink
        self._put = sink.put
        self._stored = position
        self._progress = Progress(position.lsn, position.row)
        self._control = control
        self._watch = watch
        self._publisher = Publisher(sink, config.quarantine_topic, control.holding)
        self._tables = Tables(router)
        # Only what a stored position covers is ever confirmed.
        self._safe_lsn = self._progress.complete_lsn
        self._store_due = 0.0
        self._as_of_us = position.as_of_us
        self._decoder = Decoder()
        self._domains = Domains()
        self._held = control.holding.keys
        self._rows_max, self._bytes_max = config.transaction_rows, config.transaction_bytes
        # Of the open Kafka transaction.
        self._rows = 0
        self._bytes = 0
        self._begun_at = 0.0
        # Of those that are being committed, the oldest first.
        self._handed_over: deque[_HandedOver] = deque()
        self._committed = sink.committed

    def run(self) -> None:
        """Returns when the stop signal is set, or an operator wants something else, and the open transaction is committed.

        Raises TransientError where a side fails, DecodeError, RouteError or TextFormNeededError.
        """
        self._status.enter("streaming")
        _log.info("streaming", slot=self._stored.slot, lsn=format_lsn(self._stored.lsn), row=self._stored.row)
        self._stream.confirm(self._safe_lsn, now=True)
        next_buffered, next_change, on_insert = self._stream.next_buffered, self._progress.next_change, self._on_insert
        until_duties = MESSAGES_BETWEEN_DUTIES
        while True:
            data = next_buffered()
            if data is None:
                if self._nothing_buffered():
                    return
                continue
            if data[XLOG_HEADER_BYTES] == INSERT:
                # After a crash in a large transaction many rows come again: counting them is enough.
                if next_change():
                    on_insert(data)
            else:
                self._on_other(self._decoder.decode(data, XLOG_HEADER_BYTES), len(data))
            until_duties -= 1
            if not until_duties:
                until_duties = MESSAGES_BETWEEN_DUTIES
                if self._is_over():
                    self._finish()
                    return
                self._settle()
                self._stream.keep_alive()
                self._store_position_if_due()

    def _is_over(self) -> bool:
        """Whether to finish: because of the stop signal, or because the next session is to find out how to go on."""
        return self._stop.is_set() or self._watch.has_changed or self._control.wants_otherwise()

    def _on_insert(self, data: bytes) -> None:
        """An inserted row that is not published yet: nearly all of the traffic."""
        table = self._tables.of_row(data[OID_START:OID_END])
        if table is None:
            self._status.unrouted += 1
            return
        if not self._rows:
            self._begin()
        size = len(data)
        if self._held or not self._put_unrolled(table, data, size):
            message = self._decoder.decode_insert(data, XLOG_HEADER_BYTES)
            self._publisher.publish(table.route, message.values, *self._progress.position)
        self._count(size)

    def _on_change(self, change: Update | Delete, size: int) -> None:
        """A row that was updated or deleted: what becomes of it, its route says."""
        table = self._tables.of_change(change)
        if table is None:
            self._status.unrouted += 1
            return
        changed = table.route.of_change(change)
        if changed is None:
            return
        if not self._rows:
            self._begin()
        self._publisher.publish(*changed, *self._progress.position)
        self._count(size)

    def _count(self, size: int) -> None:
        self._rows += 1
        self._bytes += size
        if self._rows >= self._rows_max or self._bytes >= self._bytes_max:
            self._hand_over()

    def _begin(self) -> None:
        self._begun_at = time.monotonic()
        self._status.busy_since = self._status.busy_since or self._begun_at

    def _put_unrolled(self, table: Table, data: bytes, size: int) -> bool:
        """Publish a usual row in the short way; whether it was one."""
        if table.read is None:
            return False
        try:
            parts = table.read(data)
            if parts is None:
                return False
            value, key, headers = parts
            self._put(table.topic, key, value, headers, size)
        except _GENERAL:
            return False
        return True

    def _on_other(self, message: Message, size: int) -> None:
        match message:
            case Begin(final_lsn=final_lsn, xid=xid):
                self._progress.begin(final_lsn)
                self._publisher.xid = self._status.xid = xid
            case Commit(end_lsn=end_lsn, commit_time_us=commit_time_us):
                self._progress.commit(end_lsn)
                self._as_of_us = commit_time_us
            case Relation():
                self._tables.describe(self._domains.resolve(message))
            case Type():
                self._domains.learn(message)
            case Update() | Delete():
                if self._progress.next_change():
                    self._on_change(message, size)
            case Truncate():
                # Counted like every change, so that positions keep their meaning; published never.
                if self._progress.next_change():
                    self._status.unrouted += 1
            case _:
                pass  # origins and logical messages carry no rows

    def _hand_over(self) -> None:
        """Let the open transaction be committed with the position that it covers, and go on meanwhile."""
        self._settle()
        lsn, row = self._progress.position
        self._stored = msgspec.structs.replace(self._stored, lsn=lsn, row=row, as_of_us=self._as_of_us)
        self._sink.hand_over(self._stored)
        self._store_due = time.monotonic() + self._config.idle_position_seconds
        self._handed_over.append(
            _HandedOver(
                lsn=lsn,
                complete_lsn=self._progress.complete_lsn,
                rows=self._rows,
                bytes=self._bytes,
                quarantined=self._publisher.quarantined,
                begun_at=self._begun_at,
                as_of_us=self._as_of_us,
            )
        )
        self._status.busy_since = self._status.busy_since or self._begun_at
        self._publisher.quarantined = self._rows = self._bytes = 0

    def _settle(self) -> None:
        """Count what was committed meanwhile, and let PostgreSQL forget it. Raises what made a commit fail."""
        committed = self._sink.committed
        if committed == self._committed:
            return
        status = self._status
        now = time.monotonic()
        while self._committed < committed:
            self._committed += 1
            done = self._handed_over.popleft()
            self._safe_lsn = done.complete_lsn
            status.rows += done.rows
            status.bytes += done.bytes
            status.transactions += 1
            status.quarantined += done.quarantined
            status.last_lsn, status.as_of_us = done.lsn, done.as_of_us
            status.commit_seconds.observe(now - done.begun_at)
            _log.debug("committed", lsn=format_lsn(done.lsn), xid=status.xid, rows=done.rows)
        status.held_keys = len(self._held)
        status.last_commit = now
        status.failure = ""
        status.busy_since = (
            self._handed_over[0].begun_at if self._handed_over else self._begun_at if self._rows else None
        )
        self._stream.confirm(self._safe_lsn)

    def _nothing_buffered(self) -> bool:
        """Nothing has arrived: close what is open, use the time, then wait. Whether the work is over.

        While one transaction commits, the next stays open: it could not be committed earlier anyhow, and takes in
        what still arrives.
        """
        self._settle()
        if self._is_over():
            self._finish()
            return True
        crowd_seconds = self._crowd_seconds()
        if self._rows and not crowd_seconds and self._sink.is_settled:
            self._hand_over()
        elif self._rows:
            self._sink.forward()
        elif not self._handed_over:
            if self._progress.idle(self._stream.server_lsn):
                self._as_of_us = self._stream.server_time_us
            self._store_position_if_due()
        seconds = crowd_seconds or min(LOOK_SECONDS, self._config.idle_position_seconds)
        if self._stream.has_unsent_confirmation:
            seconds = min(seconds, CONFIRM_INTERVAL_SECONDS)
            self._stream.confirm(self._safe_lsn)
        self._stream.wait(seconds, self._stop.fileno(), self._sink.fileno())
        self._status.silent_since = self._stream.silent_since
        self._sink.acknowledge()
        return False

    def _crowd_seconds(self) -> float:
        """How much longer the open transaction waits for more. Few rows never wait; but where many come at once, more
        follow, and each transaction costs the broker the same, however many rows it has.
        """
        if self._rows < CROWD_ROWS:
            return 0.0
        return max(0.0, self._begun_at + CROWD_SECONDS - time.monotonic())

    def _store_position_if_due(self) -> None:
        """Let the slot move on over WAL that holds no rows of ours, so that idle tables hold none back.

        The position is stored before it is confirmed: a slot ahead of it then always means that somebody
        else moved or remade the slot.
        """
        between = not self._rows and not self._progress.in_transaction
        if between and self._has_moved() and time.monotonic() >= self._store_due:
            self._begun_at = time.monotonic()
            self._hand_over()

    def _finish(self) -> None:
        """Leave as little as possible for the next start to skip."""
        if self._rows or self._has_moved():
            self._hand_over()
        self._sink.wait_settled()
        self._settle()
        self._stream.confirm(self._safe_lsn)
        self._stream.finish()

    def _has_moved(self) -> bool:
        return self._progress.position != (self._stored.lsn, self._stored.row)
