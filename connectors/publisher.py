"""One row into the open Kafka transaction: as its route says, or into quarantine with the reason."""

from __future__ import annotations

import time
from typing import Final

import structlog

from connectors.control import Held
from connectors.holding import Holding
from connectors.kafka.sink import RecordTooLargeError, TransactionalSink
from connectors.postgres.lsn import format_lsn
from connectors.postgres.pgoutput import Row
from connectors.quarantine import quarantine_record
from connectors.router import BoundRoute, Record, RowError, RowIdentity

_log = structlog.get_logger(__name__)

# A broker refuses, with the whole transaction, what is an hour ahead of its clock; clocks differ a little.
AHEAD_SECONDS_MAX: Final = 3_300.0


class Publisher:
    """No row stops the stream and none is dropped: what Kafka would refuse is quarantined in its place."""

    def __init__(self, sink: TransactionalSink, quarantine_topic: str, holding: Holding) -> None:
        self._sink = sink
        self._quarantine_topic = quarantine_topic
        self._holding = holding
        self._held = holding.keys
        self.quarantined = 0
        self.xid: int | None = None
        """Of the source transaction whose rows are published now, for the log."""

    def publish(self, route: BoundRoute, values: Row, lsn: int, row: int) -> None:
        """``lsn`` and ``row`` tell where the change is, see :class:`connectors.quarantine.QuarantinedRow`.

        Raises ConfigurationError where more keys would have to be held than may be, and what the sink does.
        """
        record: Record | None = None
        try:
            record = route.to_record(values)
            if record.timestamp_ms is not None and record.timestamp_ms > (time.time() + AHEAD_SECONDS_MAX) * 1000:
                raise RowError(f"timestamp column {route.route.timestamp!r} is further ahead than Kafka takes")
            if self._held and (route.table, record.key) in self._held:
                self._keep_behind(route, values, (lsn, row), record)
            else:
                self._sink.add(record)
        except RowError as error:
            self._refuse(route, values, (lsn, row), None, str(error))
        except RecordTooLargeError as error:
            self._refuse(route, values, (lsn, row), record, str(error))

    def _refuse(
        self, route: BoundRoute, values: Row, place: tuple[int, int], record: Record | None, reason: str
    ) -> None:
        """Quarantine a row for what it is, and hold its key where later rows are to wait."""
        identity = route.identify(values)
        lsn = format_lsn(place[0])
        key = identity.key
        if route.route.later_rows_of_key == "wait" and key is not None and (route.table, key) not in self._held:
            self._sink.add(self._holding.hold(route.table, key, Held(reason=reason, row_id=identity.id, lsn=lsn)))
        _log.warning(
            "row quarantined",
            table=route.table,
            row_id=identity.id,
            lsn=lsn,
            xid=self.xid,
            row=place[1],
            reason=reason,
        )
        self._quarantine(route, identity, place, record, reason)

    def _keep_behind(self, route: BoundRoute, values: Row, place: tuple[int, int], record: Record) -> None:
        first = self._held[route.table, record.key]
        reason = f"held behind {first.row_id or first.lsn}"
        self._quarantine(route, route.identify(values), place, record, reason, is_held=True)

    def _quarantine(
        self,
        route: BoundRoute,
        identity: RowIdentity,
        place: tuple[int, int],
        record: Record | None,
        reason: str,
        *,
        is_held: bool = False,
    ) -> None:
        lsn, row = place
        self._sink.add(
            quarantine_record(
                self._quarantine_topic,
                database=self._holding.database,
                table=route.table,
                topic=route.topic if record is None else record.topic,
                reason=reason,
                lsn=lsn,
                row=row,
                identity=identity,
                record=record,
                is_held=is_held,
            )
        )
        self.quarantined += 1
