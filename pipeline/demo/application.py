"""The application of the demo: it keeps media assets, and admits an event in the transaction that changes one.

It has the rights of any application: its own table, and outrider.admit. It keeps notes of what it saw commit; they
are a witness for the report that owes nothing to the ledger.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from pipeline.admission import AdmittedDelivery, admit
from pipeline.demo.errors import DemoError
from pipeline.demo.events import PlannedEvent
from pipeline.demo.facts import Admission, Readmission, RolledBack
from pipeline.demo.wire import ASSET_HEADER

CONNECTIONS = 4
STATEMENT_SECONDS = 30
SCHEMA = sql.SQL("""
    create schema media;
    create table media.asset (
      asset_id   text primary key,
      state      text not null,
      changed_at timestamptz not null default clock_timestamp()
    );
    grant usage on schema media to outrider_application;
    grant select, insert on media.asset to outrider_application;
""")
INSERT_ASSET = "insert into media.asset (asset_id, state) values (%s, 'processed')"


@dataclass(slots=True)
class Notes:
    """What the application saw. Lists grow with the size of the demo, which is bounded."""

    admissions: list[Admission] = field(default_factory=list)
    rolled_back: list[RolledBack] = field(default_factory=list)
    readmissions: list[Readmission] = field(default_factory=list)


class Application:
    """Runs the planned transactions over a few connections, at a steady rate."""

    def __init__(self, conninfo: str, notes: Notes) -> None:
        self._conninfo = conninfo
        self._notes = notes

    async def run(self, events: Iterator[PlannedEvent], events_per_second: float) -> None:
        """Begin one event every 1 / `events_per_second` seconds while there is a free connection.

        Raises AdmissionError, psycopg.Error, and DemoError where admit names other destinations than it should.
        """
        started = time.monotonic()
        numbered = enumerate(events)

        async def work() -> None:
            connection = await self._connect()
            try:
                for number, event in numbered:
                    await asyncio.sleep(max(0.0, started + number / events_per_second - time.monotonic()))
                    await self._transact(connection, event)
                    if connection.closed:
                        connection = await self._connect()
            finally:
                await connection.close()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(work())

    async def _connect(self) -> AsyncConnection[TupleRow]:
        connection = await AsyncConnection.connect(self._conninfo, application_name="media")
        await connection.execute(sql.SQL("set statement_timeout = {}").format(f"{STATEMENT_SECONDS}s"))
        await connection.commit()
        return connection

    async def _transact(self, connection: AsyncConnection[TupleRow], event: PlannedEvent) -> None:
        deliver_at = None
        if event.delay_seconds is not None:
            deliver_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=event.delay_seconds)
        await connection.execute(INSERT_ASSET, (event.asset,))
        deliveries = await _admit(connection, event, deliver_at)
        if event.ends != "commit":
            await _break_off(connection, event)
            self._notes.rolled_back.append(RolledBack(event.event_id, event.asset))
            return
        await connection.commit()
        committed_at = time.time()
        reached = sorted(delivery.destination_id for delivery in deliveries)
        if reached != sorted(event.destinations) or not all(delivery.created for delivery in deliveries):
            raise DemoError(f"{event.event_id!r} was to be new for {sorted(event.destinations)}, got {deliveries}")
        body_sha256 = hashlib.sha256(event.body).hexdigest()
        self._notes.admissions += [
            Admission(
                delivery_id=delivery.delivery_id,
                event_id=event.event_id,
                asset=event.asset,
                destination_id=delivery.destination_id,
                body_sha256=body_sha256,
                committed_at=committed_at,
                is_scheduled=deliver_at is not None,
            )
            for delivery in deliveries
        ]
        if event.is_readmitted:
            again = await _admit(connection, event, deliver_at)
            await connection.commit()
            self._notes.readmissions += [Readmission(delivery.delivery_id, delivery.created) for delivery in again]


async def _admit(
    connection: AsyncConnection[TupleRow], event: PlannedEvent, deliver_at: dt.datetime | None
) -> list[AdmittedDelivery]:
    return await admit(
        connection,
        event_id=event.event_id,
        event_type=event.event_type,
        payload=event.body,
        content_type=event.content_type,
        destinations=event.destinations if event.is_named else None,
        deliver_at=deliver_at,
        headers={ASSET_HEADER: event.asset},
    )


async def _break_off(connection: AsyncConnection[TupleRow], event: PlannedEvent) -> None:
    """End the transaction in the way that was planned, without a commit."""
    if event.ends == "disconnect":
        await connection.close()
        return
    if event.ends == "failure":
        try:
            await connection.execute(INSERT_ASSET, (event.asset,))
        except psycopg.errors.UniqueViolation:
            pass
        else:
            raise DemoError(f"asset {event.asset} was inserted twice")
    await connection.rollback()
