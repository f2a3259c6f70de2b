"""One session of a connector, from taking the slot to losing it. See :mod:`connectors.connector`."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Final, Literal, Self

import psycopg
import structlog

from connectors.config import ConnectorConfig
from connectors.control_session import ControlSession
from connectors.errors import TransientError
from connectors.holding import Holding
from connectors.kafka.position import Position, position_key, read_position
from connectors.kafka.sink import RecordLimits, TransactionalSink, record_bytes_max
from connectors.postgres.lsn import format_lsn
from connectors.postgres.replication import ReplicationConnection, ReplicationStream, ServerIdentity
from connectors.postgres.slot import check_server, read_slot
from connectors.postgres.snapshot import import_snapshot, read_table
from connectors.postgres.turn import take_turn
from connectors.publisher import Publisher
from connectors.release import release_rows
from connectors.router import BoundRoute, Router, bind
from connectors.start_plan import StartKind, check_slot, plan_start
from connectors.status import ConnectorStatus
from connectors.stop import StopSignal
from connectors.streaming import Streaming

_log = structlog.get_logger(__name__)

FENCE_SECONDS: Final = 60.0
POSITION_READ_SECONDS: Final = 60.0
STOP_GRACE_SECONDS: Final = 10.0


class StoppedError(Exception):
    """The stop signal was set, and what is under way need not be finished."""


class Session:
    """A context manager: everything that it opens is closed at its end, in reverse order."""

    def __init__(
        self,
        config: ConnectorConfig,
        router: Router,
        stop: StopSignal,
        status: ConnectorStatus,
        *,
        binary: bool,
    ) -> None:
        self._config = config
        self._router = router
        self._stop = stop
        self._status = status
        self._binary = binary
        self._resources = ExitStack()
        self._stream: ReplicationStream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def run(self) -> None:
        """Returns when the stop signal is set, or where the next session is to go on in another way: after a first
        start, or because an operator wants something else than streaming.

        Raises what Streaming.run does, ConfigurationError, or StoppedError.
        """
        config = self._config
        self._resources.callback(take_turn(config.conninfo, config.slot).close)
        replication = self._connect()
        identity = replication.identify()
        tables = {(route.namespace, route.table): route.columns for route in config.routes}
        check_server(replication.connection, config.publication, tables)
        slot = read_slot(replication.connection, config.slot)
        if slot is not None:
            check_slot(config.slot, identity, slot)
            self._stream = self._start_stream(replication)
        size_max = record_bytes_max(config.kafka, config.topics, self._while_waiting)
        sink = self._open_sink(config.transaction_timeout_seconds, size_max)
        stored = self._read_position(identity.database)
        control = self._resources.enter_context(
            ControlSession(config, identity.database, self._status, self._while_waiting)
        )
        plan = plan_start(config.slot, identity, slot, stored)
        _log.info("starting", plan=plan.kind.value, why=plan.why, slot=config.slot)
        if stored is None or plan.kind is not StartKind.RESUME:
            # What is streamed follows from the stored position, read after a fence, and from nothing else: between
            # the snapshot and a stream of ours another connector may have had the slot.
            self._first_start(identity, sink, size_max, control.holding, drop_slot=plan.kind is StartKind.RECREATE)
            return
        position = self._position(identity, stored.lsn, stored.row, "streaming", stored.as_of_us)
        if self._stream is None:
            raise TransientError(f"slot {config.slot} went away")
        self._status.last_lsn, self._status.as_of_us = stored.lsn, stored.as_of_us
        self._status.held_keys = len(control.holding.keys)
        control.rest(self._stream, self._stop)
        if control.state.is_paused:
            return
        release_rows(config, control, sink, position, self._while_waiting, binary=self._binary)
        Streaming(
            config,
            self._router,
            self._stop,
            self._status,
            stream=self._stream,
            sink=sink,
            position=position,
            control=control,
        ).run()

    # --- opening ------------------------------------------------------------------------

    def _connect(self) -> ReplicationConnection:
        replication = ReplicationConnection(self._config.conninfo)
        self._resources.callback(replication.close)
        return replication

    def _start_stream(self, replication: ReplicationConnection) -> ReplicationStream:
        # Begins where the slot was confirmed, at or before the stored position, which is not known yet.
        stream = replication.start(self._config.slot, self._config.publication, from_lsn=0, binary=self._binary)
        self._resources.callback(stream.close)
        return stream

    def _open_sink(self, transaction_timeout_seconds: float, size_max: RecordLimits) -> TransactionalSink:
        sink = TransactionalSink(
            self._config.kafka,
            transactional_id=self._config.transactional_id,
            positions_topic=self._config.positions_topic,
            record_bytes_max=size_max,
            transaction_timeout_seconds=transaction_timeout_seconds,
            while_waiting=self._while_waiting,
        )
        self._resources.callback(sink.close)
        sink.fence(FENCE_SECONDS)
        return sink

    def _read_position(self, database: str) -> Position | None:
        return read_position(
            self._config.kafka,
            self._config.positions_topic,
            position_key(database, self._config.slot),
            deadline_seconds=POSITION_READ_SECONDS,
            while_waiting=self._while_waiting,
        )

    def _while_waiting(self) -> None:
        """Called every second or so while Kafka makes us wait."""
        if self._stream is not None:
            self._stream.busy_elsewhere()
        finishing = self._status.state == "streaming" and self._stop.seconds_since() <= STOP_GRACE_SECONDS
        if self._stop.is_set() and not finishing:
            raise StoppedError

    def _position(
        self,
        identity: ServerIdentity,
        lsn: int,
        row: int,
        phase: Literal["snapshot", "streaming"],
        as_of_us: int | None = None,
    ) -> Position:
        return Position(
            system_id=identity.system_id,
            timeline=identity.timeline,
            database=identity.database,
            slot=self._config.slot,
            lsn=lsn,
            row=row,
            phase=phase,
            as_of_us=as_of_us,
        )

    # --- the first start ----------------------------------------------------------------

    def _first_start(
        self,
        identity: ServerIdentity,
        sink: TransactionalSink,
        size_max: RecordLimits,
        holding: Holding,
        *,
        drop_slot: bool,
    ) -> None:
        """Create the slot and publish what its snapshot sees, in one Kafka transaction with the position.

        A position of phase "snapshot" is stored before. If this is cut off, the next start knows by it that
        the slot is an unfinished one of ours, and that nothing of the snapshot was committed.
        """
        self._status.enter("snapshot", "creating the slot waits for transactions that are open now")
        sink.commit(self._position(identity, 0, 0, "snapshot"))
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        replication = self._connect()
        if drop_slot:
            replication.drop_slot(self._config.slot)
        created = replication.create_slot(self._config.slot, self._while_waiting)
        self._status.enter("snapshot", "publishing the rows from before the slot")
        sink = self._open_sink(self._config.snapshot_timeout_seconds, size_max)
        publisher = Publisher(sink, self._config.quarantine_topic, holding)
        with import_snapshot(self._config.conninfo, created.snapshot_name) as connection:
            rows = self._publish_snapshot(connection, publisher, created.consistent_lsn)
        sink.commit(self._position(identity, created.consistent_lsn, 0, "streaming"))
        self._status.rows += rows
        self._status.quarantined += publisher.quarantined
        _log.info("slot created", slot=self._config.slot, lsn=format_lsn(created.consistent_lsn), rows_before=rows)

    def _publish_snapshot(self, connection: psycopg.Connection, publisher: Publisher, lsn: int) -> int:
        rows = 0
        for route in self._config.routes:
            bound: BoundRoute | None = None
            for relation, row in read_table(
                connection,
                route.namespace,
                route.table,
                route.columns,
                route.snapshot_order,
                binary=self._binary,
            ):
                bound = bound or bind(route, relation)
                rows += 1
                publisher.publish(bound, row, lsn, rows)
                if rows % self._config.transaction_rows == 0 and self._stop.is_set():
                    raise StoppedError
        return rows
