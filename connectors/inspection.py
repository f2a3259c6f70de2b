"""What a start would do, found out without doing any of it: for an operator who wants to know before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from connectors.config import ConnectorConfig
from connectors.errors import ConfigurationError, TransientError, one_line
from connectors.kafka.position import Position, position_key, read_position
from connectors.kafka.sink import record_bytes_max
from connectors.missing_rows import MissingRows
from connectors.postgres.lsn import format_lsn
from connectors.postgres.replication import ReplicationConnection, ServerIdentity, connect
from connectors.postgres.slot import SlotState, check_server, identity_by_sql, read_slot
from connectors.postgres.snapshot import begin_reading
from connectors.start_plan import StartFacts, StartKind, StartPlan, plan_start

POSITION_READ_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TableCount:
    """How many rows of a table would be published, of those that were looked at. ``since`` (ISO 8601) is the time
    before which rows are left alone, because their records may have been dropped; None where all were looked at.
    """

    table: str
    rows: int
    missing: int
    since: str | None


@dataclass(frozen=True, slots=True)
class PlanReport:
    """``steps`` are what a start would do, in order; ``counts`` is None unless it was asked for."""

    plan: StartPlan
    server: ServerIdentity
    slot: SlotState | None
    position: Position | None
    steps: tuple[str, ...]
    counts: tuple[TableCount, ...] | None


def inspect(config: ConnectorConfig, *, count: bool, while_waiting: Callable[[], None]) -> PlanReport:
    """Look at both sides and change neither.

    With ``count`` topics and tables are read through, which takes as long as catching up would. Counts are exact while
    no connector runs. A role without REPLICATION may ask too, and is not told where a failover lost commits. Raises ConnectorError where a side cannot be asked, or a start would fail for that reason.
    """
    try:
        return _inspect(config, count=count, while_waiting=while_waiting)
    except psycopg.Error as error:
        raise TransientError(f"PostgreSQL: {one_line(error)}") from None


def _inspect(config: ConnectorConfig, *, count: bool, while_waiting: Callable[[], None]) -> PlanReport:
    record_bytes_max(config.kafka, config.topics, while_waiting)  # names the first topic that is missing
    tables = {(route.namespace, route.table): route.columns for route in config.routes}
    with connect(config.conninfo, replication=False) as connection:
        position = read_position(
            config.kafka,
            config.positions_topic,
            position_key(connection.info.dbname, config.slot),
            deadline_seconds=POSITION_READ_SECONDS,
            while_waiting=while_waiting,
        )
        # After the position was read: a connector that runs goes on meanwhile.
        publication = check_server(connection, config.publication, tables)
        slot = read_slot(connection, config.slot)
        server = _identify(config.conninfo, connection)
    facts = StartFacts(slot_name=config.slot, server=server, slot=slot, position=position, publication=publication)
    plan = plan_start(facts, config.repair)
    counts = tuple(_count(config, facts, while_waiting)) if count else None
    return PlanReport(plan, server, slot, position, tuple(_steps(config, facts, plan)), counts)


def _identify(conninfo: str, connection: psycopg.Connection) -> ServerIdentity:
    try:
        replication = ReplicationConnection(conninfo)
    except ConfigurationError:  # a role that may look, but not replicate
        return identity_by_sql(connection)
    try:
        return replication.identify()
    finally:
        replication.close()


def _steps(config: ConnectorConfig, facts: StartFacts, plan: StartPlan) -> list[str]:
    if plan.kind is StartKind.REFUSE:
        return ["end with an error, and change nothing"]
    steps = []
    if facts.slot is not None and facts.slot.active_pid is not None:
        steps.append(f"wait: a connection (pid {facts.slot.active_pid}) reads slot {config.slot}")
    if plan.kind is StartKind.RESUME and facts.position is not None:
        return [*steps, f"stream from {format_lsn(facts.position.lsn)}"]
    if plan.drops_slot:
        steps.append(f"drop slot {config.slot}")
    return [
        *steps,
        f"create slot {config.slot}",
        *(f"publish rows of {route.name} that {', '.join(route.topics)} does not hold" for route in config.routes),
        "stream from where the new slot begins",
    ]


def _count(config: ConnectorConfig, facts: StartFacts, while_waiting: Callable[[], None]) -> list[TableCount]:
    counts = []
    with (
        connect(config.conninfo, replication=False) as connection,
        MissingRows.find(
            connection,
            config.kafka,
            config.routes,
            config.quarantine_topic,
            database=facts.server.database,
            as_of_us=None if facts.position is None else facts.position.as_of_us,
            while_waiting=while_waiting,
        ) as missing,
    ):
        begin_reading(connection, None)
        for scope in missing.scopes:
            before = missing.seen
            lacking = sum(1 for _ in missing.of(connection, scope, binary=False))
            since = None if scope.since is None else str(scope.since)
            counts.append(TableCount(scope.route.name, missing.seen - before, lacking, since))
    return counts
