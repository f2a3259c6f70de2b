"""One row into the open Kafka transaction: as its route says, or into quarantine with the reason."""

from __future__ import annotations

from connectors.kafka.sink import RecordTooLargeError, TransactionalSink
from connectors.postgres.pgoutput import Row
from connectors.quarantine import quarantine_record
from connectors.router import BoundRoute, Record, RowError


class Publisher:
    """No row stops the stream and none is dropped: what Kafka would refuse is quarantined in its place."""

    def __init__(self, sink: TransactionalSink, quarantine_topic: str) -> None:
        self._sink = sink
        self._quarantine_topic = quarantine_topic
        self.quarantined = 0

    def publish(self, route: BoundRoute, values: Row, lsn: int, row: int) -> None:
        """``lsn`` and ``row`` tell where the change is, see :class:`connectors.quarantine.QuarantinedRow`."""
        record: Record | None = None
        try:
            record = route.to_record(values)
            self._sink.add(record)
        except RowError as error:
            self._quarantine(route, str(error), lsn, row, None)
        except RecordTooLargeError as error:
            self._quarantine(route, str(error), lsn, row, record)

    def _quarantine(self, route: BoundRoute, reason: str, lsn: int, row: int, record: Record | None) -> None:
        self._sink.add(
            quarantine_record(
                self._quarantine_topic,
                table=route.table,
                topic=route.topic,
                reason=reason,
                lsn=lsn,
                row=row,
                record=record,
            )
        )
        self.quarantined += 1
