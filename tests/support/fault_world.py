"""One connector in a thread, rows that are committed and rolled back around a fault, and the judgement at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from connectors.connector import Connector
from tests.support.connector_world import ConnectorWorld, wait_until
from tests.support.outbox_judge import OutboxJudge
from tests.support.outbox_load import Known, write_dispatches

BACKOFF_SECONDS = 0.5
TRANSACTION_TIMEOUT_SECONDS = 8.0


class FaultWorld:
    """Topics exist, and ``database`` is reached without what stands between it and the connector."""

    def __init__(self, world: ConnectorWorld, database: str) -> None:
        self.world = world
        self.database = database
        self._known = Known()
        self._judge = OutboxJudge(world)
        self._number = 0

    @contextmanager
    def connector(self, **changes: Any) -> Iterator[Connector]:
        """A connector that streams, with short patience; it must be the same, and stream, at the end."""
        short: dict[str, Any] = {
            "backoff_max_seconds": BACKOFF_SECONDS,
            "transaction_timeout_seconds": TRANSACTION_TIMEOUT_SECONDS,
        }
        with self.world.connector(**{**short, **changes}) as connector:
            self.world.streaming(connector)
            yield connector

    def write(self, rows: int = 20, *, more: bytes = b"") -> set[str]:
        """Commit so many rows, after as many that are rolled back; the ids of the committed ones."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            with connection.transaction(force_rollback=True):
                self._known.rolled_back |= write_dispatches(connection, self._seed(), rows)
            written = write_dispatches(connection, self._seed(), rows, more=more)
        self._known.committed |= written
        return written

    def write_in(self, connection: psycopg.Connection, rows: int = 20) -> None:
        """Write rows in a transaction that is open, and that will be committed."""
        self._known.committed |= write_dispatches(connection, self._seed(), rows)

    def judge(self, connector: Connector | None = None, *, quarantined: Iterable[str] = ()) -> None:
        """After the fault: rows flow again by themselves, and each committed row is published once, in order.

        All but those that are to be ``quarantined``.
        """
        self.write()
        aside = frozenset(quarantined)
        with psycopg.connect(self.database, autocommit=True) as connection:
            self._judge.wait_until_published(connection, aside=len(aside))
            if connector is not None:
                self.world.streaming(connector)
            assert self._judge.verdict(connection, self._known, quarantined=aside).faults == []

    def _seed(self) -> str:
        self._number += 1
        return f"{self.world.settings.connector_slot}-{self._number}"


def wait_not_ready(connector: Connector, *words: str) -> str:
    """Until readiness says no for a reason with one of the words; the reason."""
    said: dict[str, bool] = {}

    def tells() -> bool:
        is_ready, reason = connector.status.ready(time.monotonic())
        said[reason] = is_ready
        return not is_ready and any(word in reason for word in words)

    wait_until(tells, lambda: f"readiness tells of {words}; it said {said}")
    return next(reason for reason in reversed(said) if any(word in reason for word in words))
