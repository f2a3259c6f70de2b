"""One session of a connector, from taking the slot to losing it. See :mod:`connectors.connector`."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from connectors.catch_up import CatchUp
from connectors.config import ConnectorConfig
from connectors.control_session import ControlSession, RestWantedError
from connectors.errors import TransientError
from connectors.kafka.position import Position, position_key, read_position
from connectors.kafka.sink import TransactionalSink, record_bytes_max
from connectors.postgres.replication import ReplicationConnection, ReplicationStream
from connectors.postgres.slot import check_changes, check_server, read_slot
from connectors.postgres.standing import server_lsn
from connectors.postgres.turn import take_turn
from connectors.publication_watch import PublicationWatch
from connectors.publisher import Publisher
from connectors.release import release_rows
from connectors.router import Router
from connectors.start_plan import (
    RefusedStartError,
    StartCase,
    StartFacts,
    StartKind,
    StartPlan,
    foreign_slot,
    plan_start,
)
from connectors.status import ConnectorStatus
from connectors.stop import StopSignal
from connectors.streaming import Streaming

_log = structlog.get_logger(__name__)

FENCE_SECONDS: Final = 60.0
POSITION_READ_SECONDS: Final = 60.0
STOP_GRACE_SECONDS: Final = 10.0

_ORDINARY: Final = frozenset({StartCase.AGREED, StartCase.FIRST_START})


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
        """Returns when the stop signal is set, or where the next session is to go on in another way: after catching
        up, or because an operator wants something else than streaming.

        Raises what Streaming.run does, ConfigurationError, or StoppedError.
        """
        config = self._config
        turn = take_turn(config.conninfo, config.slot)
        self._resources.callback(turn.close)
        replication = self._connect()
        server = replication.identify()
        tables = {(route.namespace, route.table): route.columns for route in config.routes}
        publication = check_server(replication.connection, config.publication, tables)
        check_changes(replication.connection, config.publication, config.changes)
        slot = read_slot(replication.connection, config.slot)
        facts = StartFacts(slot_name=config.slot, server=server, slot=slot, position=None, publication=publication)
        refusal = foreign_slot(facts)
        if refusal is not None:
            raise RefusedStartError(refusal)
        if slot is not None and not slot.is_lost:
            self._stream = self._start_stream(replication)
        sink = self._open_sink()
        position = self._read_position(server.database)
        # Asked after the position was read: until the fence, an older connector may have gone on beside us.
        server = replace(server, wal_end_lsn=server_lsn(turn))
        facts = replace(facts, server=server, position=position)
        control = self._resources.enter_context(
            ControlSession(config, server.database, self._status, self._while_waiting)
        )
        plan = plan_start(facts, config.repair)
        _log.log(
            logging.INFO if plan.case in _ORDINARY else logging.WARNING,
            "starting",
            plan=plan.kind.value,
            case=plan.case.value,
            why=plan.why,
            slot=config.slot,
        )
        if plan.kind is StartKind.REFUSE:
            raise RefusedStartError(plan)
        control.rest(self._stream, self._stop)
        if control.state.is_paused:
            return
        if plan.kind is StartKind.CATCH_UP or position is None:
            self._catch_up(facts, plan, sink, control)
        else:
            watch = PublicationWatch(
                turn,
                config.publication,
                list(tables),
                expected=publication,
                every_seconds=config.publication_watch_seconds,
            )
            with watch:
                self._resume(facts, position, sink, control, watch)

    def _catch_up(self, facts: StartFacts, plan: StartPlan, sink: TransactionalSink, control: ControlSession) -> None:
        """The next session streams: what is streamed follows from a position that was read after a fence, and from
        nothing else. Between this and a stream of ours another connector may have the slot.
        """
        if self._stream is not None:
            self._stream.close()
            self._stream = None

        def while_waiting() -> None:
            self._while_waiting()
            control.check_rest()

        with suppress(RestWantedError):
            CatchUp(
                self._config,
                self._status,
                facts=facts,
                plan=plan,
                sink=sink,
                publisher=Publisher(sink, self._config.quarantine_topic, control.holding),
                while_waiting=while_waiting,
                binary=self._binary,
            ).run()

    def _resume(
        self,
        facts: StartFacts,
        stored: Position,
        sink: TransactionalSink,
        control: ControlSession,
        watch: PublicationWatch,
    ) -> None:
        if self._stream is None:
            raise TransientError(f"slot {self._config.slot} went away")
        self._status.last_lsn, self._status.as_of_us = stored.lsn, stored.as_of_us
        self._status.held_keys = len(control.holding.keys)
        position = msgspec.structs.replace(stored, timeline=facts.server.timeline, publication=facts.publication)
        release_rows(self._config, control, sink, position, self._while_waiting, binary=self._binary)
        Streaming(
            self._config,
            self._router,
            self._stop,
            self._status,
            stream=self._stream,
            sink=sink,
            position=position,
            control=control,
            watch=watch,
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

    def _open_sink(self) -> TransactionalSink:
        limits = record_bytes_max(self._config.kafka, self._config.topics, self._while_waiting)
        sink = TransactionalSink(
            self._config.kafka,
            transactional_id=self._config.transactional_id,
            positions_topic=self._config.positions_topic,
            record_bytes_max=limits,
            transaction_timeout_seconds=self._config.transaction_timeout_seconds,
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
