"""``outrider connector …``: how it stands, what a start would do, and the operator's acts on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import psycopg
import typer

from connectors.config import ConnectorConfig
from connectors.control import ControlError, Pause, Subject
from connectors.errors import ConnectorError, MissingPublicationError, MissingTopicError, SlotActiveError
from connectors.inspection import inspect
from connectors.kafka.control_log import read_control, write_control
from connectors.kafka.forgetting import forget_position
from connectors.kafka.position import position_key, read_position
from connectors.postgres.lsn import format_lsn
from connectors.postgres.standing import SlotStanding, slot_standing
from connectors.postgres.turn import take_turn
from connectors.start_plan import StartKind
from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.connector_refusals import how_to_go_on
from pipeline.cli.connector_standing import READ_SECONDS, ConnectorStanding, connector_standing
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.cli.recorded import recorded
from pipeline.cli.run_connector import connector_config
from pipeline.ledger.operator import operator_connection
from pipeline.settings import load_settings

LAG_SECONDS_MAX = 60.0
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this the command only says what it would do.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The connector: how far it is, and acts on it.")
    group.command("status")(status)
    group.command("plan")(plan)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("reset")(reset)
    app.add_typer(group, name="connector")


@contextmanager
def both_sides() -> Iterator[tuple[psycopg.Connection, ConnectorConfig]]:
    """A session on the database and how to reach Kafka; what either cannot do is one line."""
    settings = load_settings()
    with plain_errors(), operator_connection(settings.postgres_conninfo) as connection:
        yield connection, connector_config(settings)


@contextmanager
def plain_errors() -> Iterator[None]:
    """What a side cannot do, as the line and the mend that a command prints."""
    try:
        yield
    except MissingTopicError as error:
        raise CommandError(f"{error.topic} does not exist in Kafka: run outrider topics apply") from None
    except MissingPublicationError as error:
        raise CommandError(f"{error.what}: run outrider migrate up") from None
    except (ConnectorError, ControlError) as error:
        raise CommandError(str(error)) from None


def status(
    *,
    lag_seconds_max: Annotated[
        float, typer.Option(min=0, help="An unpublished row that is older is trouble.")
    ] = LAG_SECONDS_MAX,
    as_json: AsJson = False,
) -> None:
    """Slot, position, lag in bytes, rows and seconds, what is paused, held and quarantined.

    Exit code 0 where all is well, 1 where something needs a look; what, is said.
    """
    with both_sides() as (connection, config):
        standing = connector_standing(connection, config, lag_seconds_max=lag_seconds_max)
    if as_json:
        print_json(asdict(standing))
    else:
        _print(standing)
    raise typer.Exit(1 if standing.troubles else 0)


def plan(
    *,
    count: Annotated[
        bool, typer.Option("--count", help="Read topics and tables through, and count what would be published.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What a start of the connector would do now, and why; nothing is changed. Exit code 1 where it would refuse.

    An operator's login is enough. Only one with REPLICATION, as the connector's, is told of commits that a failover lost.
    """
    settings = load_settings()
    with plain_errors():
        report = inspect(connector_config(settings), count=count, while_waiting=lambda: None)
    refuses = report.plan.kind is StartKind.REFUSE
    if as_json:
        print_json(
            {
                "does": report.plan.kind.value,
                "case": report.plan.case.value,
                "why": report.plan.why,
                "steps": report.steps,
                "counts": report.counts,
                "help": how_to_go_on(report.plan) if refuses else None,
            }
        )
    else:
        print_fields([("case", report.plan.case.value), ("why", report.plan.why)])
        for number, step in enumerate(report.steps, 1):
            print(f"{number}. {visible(step)}")
        if report.counts is not None:
            print()
            print_columns(
                ("TABLE", "ROWS", "MISSING", "LOOKED AT SINCE"),
                [(table.table, table.rows, table.missing, table.since) for table in report.counts],
            )
        if refuses:
            print(visible(how_to_go_on(report.plan)), file=sys.stderr)
    raise typer.Exit(1 if refuses else 0)


def pause(*, reason: Reason, operator: Operator = None, as_json: AsJson = False) -> None:
    """Let the connector rest, running or not, until `resume`: nothing is published and nothing lost.

    It obeys within seconds and after restarts too. PostgreSQL keeps the WAL meanwhile, so watch safe_wal_size.
    """
    _set_pause(reason, operator, as_json=as_json, is_paused=True)


def resume(*, reason: Reason, operator: Operator = None, as_json: AsJson = False) -> None:
    """Let a paused connector go on, from where it rested."""
    _set_pause(reason, operator, as_json=as_json, is_paused=False)


def _set_pause(reason: str, operator: str | None, *, as_json: bool, is_paused: bool) -> None:
    by = act(operator, reason)
    with both_sides() as (connection, config):
        database = connection.info.dbname
        was = read_control(config.kafka, config.control_topic, database, config.slot)
        if was.is_paused != is_paused:
            with recorded(
                connection,
                "connector.pause" if is_paused else "connector.resume",
                by,
                parameters={"slot": config.slot, "database": database},
                before={"is_paused": was.is_paused},
                after={"is_paused": is_paused},
            ):
                wish = Pause(
                    is_paused=is_paused,
                    operator=by.operator,
                    reason=reason,
                    at=datetime.now(UTC).isoformat(timespec="seconds"),
                )
                subject = Subject(database=database, slot=config.slot, kind="pause")
                write_control(config.kafka, config.control_topic, subject, wish)
        slot = slot_standing(connection, config.slot)
    changed = was.is_paused != is_paused
    if as_json:
        print_json({"slot": config.slot, "is_paused": is_paused, "changed": changed, **_wal(slot)})
        return
    state = "paused" if is_paused else "resumed"
    print(f"{config.slot} is {state}" if changed else f"{config.slot} was {state} already; nothing is changed")
    print(_what_the_wal_does(slot, is_paused=is_paused))


def reset(
    *,
    reason: Reason,
    operator: Operator = None,
    drop_slot: Annotated[
        bool, typer.Option("--drop-slot", help="Drop the replication slot too; needs a role with REPLICATION.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget how far the connector is, so that its next start finds out by ids what the topics lack, and publishes that.

    Refused while a connector works with the slot. What is quarantined, held or paused stays so.
    """
    by = act(operator, reason)
    settings = load_settings()
    with both_sides() as (connection, config), _turn(settings.postgres_conninfo, config.slot):
        database = connection.info.dbname
        key = position_key(database, config.slot)
        position = read_position(
            config.kafka, config.positions_topic, key, deadline_seconds=READ_SECONDS, while_waiting=lambda: None
        )
        slot = slot_standing(connection, config.slot)
        if slot is not None and slot.active_pid is not None:
            raise CommandError(f"process {slot.active_pid} reads slot {config.slot}: stop the connector first")
        drops = drop_slot and slot is not None
        found = {
            "position": None if position is None else f"{format_lsn(position.lsn)}, row {position.row}",
            "slot": None if slot is None else f"confirmed {format_lsn(slot.confirmed_lsn)}, {slot.wal_status}",
        }
        if yes:
            with recorded(
                connection,
                "connector.reset",
                by,
                parameters={"slot": config.slot, "database": database, "drop_slot": drop_slot},
                before=found,
                after={"position": None, "slot": None if drops else found["slot"]},
            ):
                forget_position(
                    config.kafka,
                    transactional_id=config.transactional_id,
                    positions_topic=config.positions_topic,
                    database=database,
                    slot=config.slot,
                )
                if drops:
                    connection.execute("select pg_drop_replication_slot(%s)", [config.slot])
    if as_json:
        print_json({"slot": config.slot, "found": found, "drops_slot": drops, "done": yes})
        return
    verb = "forgot" if yes else "would forget"
    print(f"{verb} the position of slot {config.slot}: {found['position'] or 'there is none'}")
    if drops:
        print(f"{'dropped' if yes else 'would drop'} the slot: {found['slot']}")
    print("the next start publishes the rows that the tables hold and the topics lack, by their ids")
    if not yes:
        print("repeat with --yes to do it")


@contextmanager
def _turn(conninfo: str, slot: str) -> Iterator[None]:
    """No connector begins to work with the slot while the block runs."""
    try:
        turn = take_turn(conninfo, slot)
    except SlotActiveError as error:
        raise CommandError(f"{error}: stop it first") from None
    with turn:
        yield


def _wal(slot: SlotStanding | None) -> dict[str, int | str | None]:
    if slot is None:
        return {"wal_status": None, "kept_bytes": None, "safe_wal_size_bytes": None}
    return {"wal_status": slot.wal_status, "kept_bytes": slot.lag_bytes, "safe_wal_size_bytes": slot.safe_wal_size}


def _what_the_wal_does(slot: SlotStanding | None, *, is_paused: bool) -> str:
    if slot is None:
        return "there is no slot yet: the connector obeys when it has made one"
    if slot.active_pid is None:
        return "no connector reads the slot now: the next to start obeys"
    if not is_paused:
        return f"the connector goes on within seconds; {slot.lag_bytes} bytes of WAL wait for it"
    bound = (
        "max_slot_wal_keep_size does not bound it" if slot.safe_wal_size is None else f"{slot.safe_wal_size} bytes more"
    )
    return f"the connector rests within seconds; PostgreSQL keeps WAL from here on: {slot.lag_bytes} bytes now, " + (
        f"the slot is lost after {bound}" if slot.safe_wal_size is not None else bound
    )


def _print(standing: ConnectorStanding) -> None:
    timeline = f"{standing.timeline} (server: {standing.server_timeline})" if standing.timeline else None
    paused = f"by {standing.paused_by} at {standing.paused_at}: {standing.pause_reason}" if standing.is_paused else "no"
    position = None if standing.position_lsn is None else f"{standing.position_lsn}, row {standing.position_row}"
    print_fields(
        [
            ("slot", standing.slot),
            ("database", standing.database),
            ("read by process", standing.active_pid),
            ("paused", paused),
            ("wal status", standing.wal_status),
            ("safe wal size, bytes", standing.safe_wal_size_bytes),
            ("server at", standing.server_lsn),
            ("published to", position),
            ("confirmed to", standing.confirmed_lsn),
            ("timeline", timeline),
            ("lag, bytes", standing.lag_bytes),
            ("quarantined", standing.quarantined),
            ("held keys", standing.held_keys),
        ]
    )
    print()
    print_columns(
        ("TABLE", "UNPUBLISHED ROWS", "OLDEST, SECONDS"),
        [
            (t.table, None if t.rows is None else f"{t.rows}{'+' if t.is_more else ''}", t.oldest_seconds)
            for t in standing.tables
        ],
    )
    for trouble in standing.troubles:
        print(f"trouble: {visible(trouble)}", file=sys.stderr)
