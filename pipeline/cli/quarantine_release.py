"""Entries out of quarantine, on the record: rows by the connector, messages by a new dispatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

import psycopg

from connectors.config import ConnectorConfig
from connectors.control import ControlState, Outcome, Release, Selection, Subject
from connectors.kafka.control_log import read_control, wait_for_answer, write_control
from connectors.kafka.one_record import send_record
from connectors.postgres.standing import slot_standing
from connectors.quarantine import MARK_ENTRIES_MAX, Mark, MarkState, mark_record
from pipeline.cli.quarantine_entries import Entry
from pipeline.cli.recorded import recorded
from pipeline.ledger.operator import Act
from pipeline.ledger.operator_deliveries import dispatch_again


@dataclass(slots=True)
class Released:
    """What came of it. ``rows`` None: the connector has not answered yet, ``why`` says what it waits for."""

    rows: Outcome | None = None
    why: str | None = None
    dispatched: dict[int, int] = field(default_factory=dict)
    """Entry to the number of its delivery's new dispatch."""
    gone_on: list[int] = field(default_factory=list)
    """Messages whose delivery needs nothing any more."""
    unknown: list[int] = field(default_factory=list)
    """Messages that name no delivery."""
    more_messages: int = 0
    """Beyond what one release takes."""


def release_messages(
    connection: psycopg.Connection, config: ConnectorConfig, entries: Iterable[Entry], by: Act, released: Released
) -> None:
    """Dispatch the deliveries of refused messages anew, under one run, and mark the entries as settled.

    A kill between the commit and the mark leaves the entry there: another release then does no harm, since of two
    dispatches the older is stale. Raises ConnectorError where Kafka does not take the mark.
    """
    chosen = list(entries)
    with recorded(
        connection,
        "quarantine.release",
        by,
        parameters={"messages": [entry.number for entry in chosen]},
        before=None,
        after=None,
    ) as record:
        for entry in chosen:
            if entry.delivery_id is None or entry.dispatch_seq is None:
                released.unknown.append(entry.number)
                continue
            dispatch_seq = dispatch_again(connection, entry.delivery_id, entry.dispatch_seq)
            if dispatch_seq is None:
                released.gone_on.append(entry.number)
            else:
                released.dispatched[entry.number] = dispatch_seq
        settled = [*released.dispatched, *released.gone_on]
        _mark(config, settled, by, "released")
        record.counts |= {
            "dispatched": len(released.dispatched),
            "gone_on": len(released.gone_on),
            "unknown": len(released.unknown),
        }


def give_up_messages(connection: psycopg.Connection, config: ConnectorConfig, entries: Iterable[Entry], by: Act) -> int:
    """Settle messages without a dispatch; how many."""
    numbers = [entry.number for entry in entries]
    with recorded(
        connection, "quarantine.give_up", by, parameters={"messages": numbers}, before=None, after=None
    ) as record:
        _mark(config, numbers, by, "given_up")
        record.counts["given_up"] = len(numbers)
    return len(numbers)


def release_rows(
    connection: psycopg.Connection,
    config: ConnectorConfig,
    selection: Selection,
    by: Act,
    released: Released,
    *,
    gives_up: bool,
    wait_seconds: float,
) -> None:
    """Ask the connector for it, under one run, and wait for its answer. Raises ConnectorError or ControlError."""
    database = connection.info.dbname
    release_id = uuid4().hex
    with recorded(
        connection,
        "quarantine.release",
        by,
        parameters={
            "slot": config.slot,
            "database": database,
            "release_id": release_id,
            "entries": list(selection.entries),
            "until": selection.until,
            "table": selection.table,
            "key": None if selection.key is None else selection.key.decode(errors="replace"),
            "gives_up": gives_up,
        },
        before=None,
        after=None,
    ) as record:
        request = Release(
            selection=selection,
            operator=by.operator,
            reason=by.reason or "",
            at=_now(),
            gives_up=gives_up,
        )
        subject = Subject(database=database, slot=config.slot, kind="release", release_id=release_id)
        state = read_control(config.kafka, config.control_topic, database, config.slot)
        # Looked at before it is asked: a connector that hears of it lets go of the slot for a moment.
        released.why = _why_it_waits(connection, config, state)
        write_control(config.kafka, config.control_topic, subject, request)
        if released.why is None:
            state = wait_for_answer(config.kafka, config.control_topic, state, release_id, wait_seconds)
            released.why = "the connector has not answered in time; it goes on with it"
        answer = state.releases.get(release_id)
        released.rows = None if answer is None else answer.outcome
        if released.rows is None:
            record.counts["waits"] = 1
        else:
            released.why = None
            rows = released.rows
            record.counts |= {
                "released": rows.released,
                "gone": rows.gone,
                "given_up": rows.given_up,
                "refused": rows.refused,
                "waiting": rows.waiting,
            }


def _why_it_waits(connection: psycopg.Connection, config: ConnectorConfig, state: ControlState) -> str | None:
    if state.is_paused:
        return "the connector is paused: it does it when it is resumed"
    slot = slot_standing(connection, config.slot)
    if slot is None or slot.active_pid is None:
        return f"no connector reads slot {config.slot} now: the next to start does it first"
    return None


def _mark(config: ConnectorConfig, numbers: Sequence[int], by: Act, state: MarkState) -> None:
    for start in range(0, len(numbers), MARK_ENTRIES_MAX):
        mark = Mark(
            state=state,
            entries=tuple(numbers[start : start + MARK_ENTRIES_MAX]),
            operator=by.operator,
            reason=by.reason or "",
            at=_now(),
        )
        send_record(config.kafka, mark_record(config.quarantine_topic, mark))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
