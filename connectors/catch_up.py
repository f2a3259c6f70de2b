"""Making slot and topics agree again: a new slot, and by id exactly the rows that the topics lack.

The order of things makes it safe to cut off anywhere:

1. read which ids the topics hold; nothing is changed yet, and nobody else publishes, because the session is fenced;
2. store a position of phase "snapshot": from here on no start trusts the slot, or anything but the ids;
3. drop the slot that is there, create it anew, and look at the tables as of the moment at which it begins;
4. publish what is missing, in Kafka transactions of bounded size, each with such a position;
5. store the streaming position at which the new slot begins.

Missing rows keep their order among themselves. They come after rows of their key that were published before, also
where they were written earlier: what is in a topic stays in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import psycopg
import structlog

from connectors.config import ConnectorConfig
from connectors.kafka.position import Position
from connectors.kafka.sink import TransactionalSink
from connectors.missing_rows import MissingRows
from connectors.postgres.lsn import format_lsn
from connectors.postgres.pgoutput import Row
from connectors.postgres.replication import CreatedSlot, ReplicationConnection, connect
from connectors.postgres.snapshot import import_snapshot, now_us
from connectors.publisher import Publisher
from connectors.start_plan import StartFacts, StartPlan
from connectors.status import ConnectorStatus

_log = structlog.get_logger(__name__)


class CatchUp:
    """One run of it, inside a session that holds the turn and is fenced."""

    def __init__(
        self,
        config: ConnectorConfig,
        status: ConnectorStatus,
        *,
        facts: StartFacts,
        plan: StartPlan,
        sink: TransactionalSink,
        publisher: Publisher,
        while_waiting: Callable[[], None],
        binary: bool,
    ) -> None:
        self._config = config
        self._status = status
        self._facts = facts
        self._plan = plan
        self._sink = sink
        self._publisher = publisher
        self._while_waiting = while_waiting
        self._binary = binary
        # Of the open Kafka transaction.
        self._rows = 0
        self._bytes = 0

    def run(self) -> None:
        """Returns when the next session can stream.

        Raises ConfigurationError where it cannot be told what is missing, TransientError where a side fails, and
        what publishing raises.
        """
        config, case = self._config, self._plan.case.value
        self._status.enter("catching up", f"{case}: {self._plan.why}; reading what the topics hold")
        position = self._facts.position
        with connect(config.conninfo, replication=False) as connection:
            missing = MissingRows.find(
                connection,
                config.kafka,
                config.routes,
                config.quarantine_topic,
                database=self._facts.server.database,
                as_of_us=None if position is None else position.as_of_us,
                while_waiting=self._while_waiting,
            )
        with missing:
            self._sink.commit(self._snapshot_position(0, 0))
            self._status.enter("catching up", f"{case}: creating the slot waits for transactions that are open now")
            replication = ReplicationConnection(config.conninfo)
            try:
                if self._plan.drops_slot:
                    replication.drop_slot(config.slot, self._while_waiting)
                created = replication.create_slot(config.slot, self._while_waiting)
                self._status.enter("catching up", f"{case}: publishing the rows that the topics lack")
                with import_snapshot(config.conninfo, created.snapshot_name) as connection:
                    as_of_us = now_us(connection)
                    published = self._publish(missing, connection, created)
            finally:
                replication.close()
        self._sink.commit(self._position(created.consistent_lsn, 0, "streaming", as_of_us))
        self._count()
        _log.info(
            "caught up",
            case=case,
            slot=config.slot,
            lsn=format_lsn(created.consistent_lsn),
            rows_published=published,
            rows_seen=missing.seen,
            not_looked_at={scope.route.name: str(scope.since) for scope in missing.scopes if scope.since is not None},
        )

    def _publish(self, missing: MissingRows, connection: psycopg.Connection, created: CreatedSlot) -> int:
        lsn, published = created.consistent_lsn, 0
        for scope in missing.scopes:
            for route, row in missing.of(connection, scope, binary=self._binary):
                published += 1
                self._publisher.publish(route, row, lsn, published)
                self._rows += 1
                self._bytes += _size(row)
                if self._rows >= self._config.transaction_rows or self._bytes >= self._config.transaction_bytes:
                    self._sink.commit(self._snapshot_position(lsn, published))
                    self._count()
                    self._while_waiting()
        return published

    def _count(self) -> None:
        """After a commit: show what it published."""
        status = self._status
        status.rows += self._rows
        status.transactions += 1
        status.quarantined += self._publisher.quarantined
        self._publisher.quarantined = self._rows = self._bytes = 0

    def _snapshot_position(self, lsn: int, row: int) -> Position:
        before = self._facts.position
        return self._position(lsn, row, "snapshot", None if before is None else before.as_of_us)

    def _position(self, lsn: int, row: int, phase: Literal["snapshot", "streaming"], as_of_us: int | None) -> Position:
        server = self._facts.server
        return Position(
            system_id=server.system_id,
            timeline=server.timeline,
            database=server.database,
            slot=self._config.slot,
            lsn=lsn,
            row=row,
            phase=phase,
            publication=self._facts.publication,
            as_of_us=as_of_us,
        )


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, (bytes, str)))
