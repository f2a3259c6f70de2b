"""How the connector's slot stands: both sides asked, nothing changed. What ``outrider connector status`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from connectors.config import ConnectorConfig
from connectors.control import ControlState
from connectors.kafka.control_log import read_control
from connectors.kafka.position import Position, position_key, read_position
from connectors.postgres.lsn import format_lsn
from connectors.postgres.standing import SlotStanding, Unpublished, server_lsn, slot_standing, unpublished
from pipeline.cli.quarantine_entries import unsettled_entries

READ_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStanding:
    """Rows of one published table that are not in Kafka yet. ``rows`` None: not known, see ConnectorStanding."""

    table: str
    rows: int | None
    is_more: bool
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStanding:
    """LSNs as PostgreSQL prints them, sizes in bytes. Rows and ages are known once a position says its time."""

    slot: str
    database: str
    publication: str
    is_running: bool
    active_pid: int | None
    wal_status: str | None
    safe_wal_size_bytes: int | None
    server_lsn: str
    confirmed_lsn: str | None
    position_lsn: str | None
    position_row: int | None
    position_phase: str | None
    timeline: int | None
    server_timeline: int
    lag_bytes: int | None
    tables: list[TableStanding]
    is_paused: bool
    paused_by: str | None
    pause_reason: str | None
    paused_at: str | None
    quarantined: int
    held_keys: int
    troubles: list[str]


def connector_standing(
    connection: psycopg.Connection, config: ConnectorConfig, *, lag_seconds_max: float
) -> ConnectorStanding:
    """Raises ConnectorError where Kafka does not answer or a topic is missing."""
    database = connection.info.dbname
    slot = slot_standing(connection, config.slot)
    end_lsn = server_lsn(connection) if slot is None else slot.server_lsn
    row = connection.execute(
        "select (select system_identifier from pg_control_system())::text, (select timeline_id from pg_control_checkpoint())"
    ).fetchone()
    system_id, server_timeline = (str(row[0]), int(row[1])) if row is not None else ("", 0)
    position = read_position(
        config.kafka,
        config.positions_topic,
        position_key(database, config.slot),
        deadline_seconds=READ_SECONDS,
        while_waiting=lambda: None,
    )
    control = read_control(config.kafka, config.control_topic, database, config.slot)
    tables = list(_tables(connection, config, position, end_lsn))
    entries = unsettled_entries(config.kafka, config.quarantine_topic, database)
    pause = control.pause if control.is_paused else None
    return ConnectorStanding(
        slot=config.slot,
        database=database,
        publication=config.publication,
        is_running=slot is not None and slot.active_pid is not None,
        active_pid=None if slot is None else slot.active_pid,
        wal_status=None if slot is None else slot.wal_status,
        safe_wal_size_bytes=None if slot is None else slot.safe_wal_size,
        server_lsn=format_lsn(end_lsn),
        confirmed_lsn=None if slot is None else format_lsn(slot.confirmed_lsn),
        position_lsn=None if position is None else format_lsn(position.lsn),
        position_row=None if position is None else position.row,
        position_phase=None if position is None else position.phase,
        timeline=None if position is None else position.timeline,
        server_timeline=server_timeline,
        lag_bytes=None if position is None else max(0, end_lsn - position.lsn),
        tables=tables,
        is_paused=pause is not None,
        paused_by=None if pause is None else pause.operator,
        pause_reason=None if pause is None else pause.reason,
        paused_at=None if pause is None else pause.at,
        quarantined=sum(1 for _ in entries),
        held_keys=len(control.held),
        troubles=list(
            _troubles(slot, position, control, tables=tables, system_id=system_id, lag_seconds_max=lag_seconds_max)
        ),
    )


def _tables(
    connection: psycopg.Connection, config: ConnectorConfig, position: Position | None, end_lsn: int
) -> Iterator[TableStanding]:
    for route in config.routes:
        found: Unpublished | None = None
        if position is not None and position.lsn >= end_lsn:
            found = Unpublished(0, False, 0.0)
        elif position is not None and position.as_of_us is not None:
            found = unpublished(connection, route, position.as_of_us)
        yield TableStanding(
            table=route.name,
            rows=None if found is None else found.rows,
            is_more=found is not None and found.is_more,
            oldest_seconds=None if found is None else round(found.oldest_seconds, 3),
        )


def _troubles(
    slot: SlotStanding | None,
    position: Position | None,
    control: ControlState,
    *,
    tables: list[TableStanding],
    system_id: str,
    lag_seconds_max: float,
) -> Iterator[str]:
    """What somebody should look at, each in one sentence."""
    if slot is None:
        yield "there is no slot: outrider connector plan says what a start would do"
    else:
        if slot.active_pid is None:
            yield "no connector reads the slot, and WAL is kept for it"
        if slot.wal_status == "lost":
            yield "the slot's WAL is gone: outrider connector plan says what a start would do"
        elif slot.wal_status == "unreserved":
            yield "the slot's WAL goes at the next checkpoint: let the connector catch up, or raise max_slot_wal_keep_size"
    if position is None:
        yield "Kafka holds no position of the slot"
    elif position.system_id != system_id:
        yield f"the position is of another server, {position.system_id}; this is {system_id}"
    if control.is_paused:
        yield "it is paused: outrider connector resume"
    if control.held:
        yield f"{len(control.held)} keys are held behind rows in quarantine: outrider quarantine list"
    for table in tables:
        if table.oldest_seconds is not None and table.oldest_seconds > lag_seconds_max:
            yield f"the oldest unpublished row of {table.table} is {table.oldest_seconds:.0f} s old"
