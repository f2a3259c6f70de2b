"""A second look at both sides, beside the stream: how the slot stands, what waits, and who still answers.

The stream itself cannot tell that the slot is about to be lost, or that nothing comes although it should. One thread
asks every few seconds, on connections of its own, and replaces ``status.outlook``; it changes nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import psycopg
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from connectors.config import ConnectorConfig
from connectors.errors import ConnectorError, one_line
from connectors.kafka.client import ClientErrors
from connectors.postgres.replication import connect
from connectors.postgres.standing import SlotStanding, Unpublished, slot_standing, unpublished
from connectors.status import ConnectorStatus, Outlook
from connectors.stop import StopSignal

_log = structlog.get_logger(__name__)

WATCH_SECONDS: Final = 3.0
KAFKA_ANSWER_SECONDS: Final = 2.0
STATEMENT_TIMEOUT: Final = "5s"
JOIN_SECONDS: Final = 5.0


class Watch:
    """Looks while the block runs. A side that hangs does not hold up its end: the thread is a daemon."""

    def __init__(self, config: ConnectorConfig, status: ConnectorStatus, stop: StopSignal) -> None:
        self._config = config
        self._status = status
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._connection: psycopg.Connection | None = None
        now = time.monotonic()
        self._postgres_at = self._kafka_at = now
        self._backlog = Backlog()
        self._warned: str | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        errors = ClientErrors()
        admin = AdminClient(errors.configure(self._config.kafka))
        while not self._stop.wait(WATCH_SECONDS):
            slot, tables = self._ask_postgres()
            self._ask_kafka(admin)
            self._status.outlook = Outlook(
                slot=slot,
                unpublished=tables,
                postgres_answered_at=self._postgres_at,
                kafka_answered_at=self._kafka_at,
                behind_since=self._backlog.look(self._status, slot, time.monotonic()),
                warning=self._warning(slot),
            )
        if self._connection is not None:
            self._connection.close()

    def _ask_postgres(self) -> tuple[SlotStanding | None, dict[str, Unpublished]]:
        config = self._config
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(config.conninfo, replication=False)
                self._connection.execute(f"set statement_timeout = '{STATEMENT_TIMEOUT}'; set idle_session_timeout = 0")
            slot = slot_standing(self._connection, config.slot)
            tables = self._unpublished(self._connection, self._status.as_of_us)
        except (psycopg.Error, ConnectorError) as error:
            _log.debug("the watch got no answer", reason=one_line(error))
            if self._connection is not None:
                self._connection.close()
            return None, {}
        self._postgres_at = time.monotonic()
        return slot, tables

    def _unpublished(self, connection: psycopg.Connection, as_of_us: int | None) -> dict[str, Unpublished]:
        if as_of_us is None:
            return {}
        found = {route.name: unpublished(connection, route, as_of_us) for route in self._config.routes}
        return {table: rows for table, rows in found.items() if rows is not None}

    def _ask_kafka(self, admin: AdminClient) -> None:
        try:
            admin.list_topics(self._config.positions_topic, timeout=KAFKA_ANSWER_SECONDS)
        except KafkaException as error:
            _log.debug("the watch got no answer", reason=one_line(error))
        else:
            self._kafka_at = time.monotonic()

    def _warning(self, slot: SlotStanding | None) -> str | None:
        """Why somebody should look at the slot; logged when it begins and when its kind changes."""
        kind, text = slot_danger(slot, self._config.safe_wal_warning_bytes)
        if kind != self._warned:
            self._warned = kind
            if kind is not None and slot is not None:
                size = slot.safe_wal_size
                _log.warning("slot in danger", reason=text, slot=self._config.slot, safe_wal_size_bytes=size)
        return text


def slot_danger(slot: SlotStanding | None, warning_bytes: int) -> tuple[str | None, str | None]:
    """Kind of danger and what to say of it."""
    if slot is None:
        return None, None
    if slot.wal_status in ("unreserved", "lost"):
        return slot.wal_status, f"the slot's WAL is {slot.wal_status}"
    if slot.safe_wal_size is not None and slot.safe_wal_size < warning_bytes:
        return "short", f"the slot is lost after {max(0, slot.safe_wal_size) >> 20} MiB more of WAL"
    return None, None


class Backlog:
    """Whether anything is published of WAL that is there. Pure."""

    def __init__(self) -> None:
        self._published = (0, 0)
        self._since: float | None = None

    def look(self, status: ConnectorStatus, slot: SlotStanding | None, now: float) -> float | None:
        """Since when there was WAL and nothing was published, by ``now``'s clock. Each commit renews the patience."""
        published = status.last_lsn, status.transactions
        is_behind = status.state == "streaming" and slot is not None and slot.server_lsn > status.last_lsn
        if not is_behind or published != self._published:
            self._since = None
        elif self._since is None:
            self._since = now
        self._published = published
        return self._since
