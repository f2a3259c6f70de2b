"""Replays in the ledger: what a run has selected, how far it is, and its dispatches.

Synchronous, on the one connection of whoever drives the run. Each function is one statement; transactions are the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import class_row, dict_row, scalar_row

from pipeline.ledger.queries import query

Mode = Literal["missing", "failed", "all"]
Source = Literal["topic", "ledger", "dead", "rebuild"]
Phase = Literal["evidence", "select", "dispatch", "over"]
Wish = Literal["run", "pause", "cancel"]

REPORT_ROWS = 2_000
"""That a report reads at once."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the deliveries that a source holds are meant. None: no filter."""

    mode: Mode
    destinations: tuple[str, ...] | None = None
    event_types: tuple[str, ...] | None = None
    """``media.processed``, or ``media.*`` for all that begin with ``media.``."""
    states: tuple[str, ...] | None = None
    outcomes: tuple[str, ...] | None = None
    """Of the last attempt."""
    admitted_since: datetime | None = None
    admitted_until: datetime | None = None

    def parameters(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "takes_cancelled": self.outcomes is not None and "cancelled" in self.outcomes,
            "destination_ids": _array(self.destinations),
            "event_types": None if self.event_types is None else [_pattern(name) for name in self.event_types],
            "states": _array(self.states),
            "outcomes": _array(self.outcomes),
            "admitted_since": self.admitted_since,
            "admitted_until": self.admitted_until,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands, and who drives it."""

    source: Source
    phase: Phase
    wish: Wish
    driver: str | None
    driver_seen_at: datetime | None
    after_destination: str
    after_time: datetime
    after_id: str
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCursor:
    """How far a run has read a partition."""

    topic: str
    partition: int
    begin_offset: int
    next_offset: int
    end_offset: int
    messages: int
    refused: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a run is to read of a partition, and how many offsets of what was asked for retention has taken already."""

    topic: str
    partition: int
    begin_offset: int
    end_offset: int
    removed: int


@dataclass(frozen=True, slots=True)
class Advance:
    """What reading a partition on has brought."""

    topic: str
    partition: int
    next_offset: int
    messages: int = 0
    refused: int = 0
    removed: int = 0


def begin_replay(
    connection: psycopg.Connection,
    run_id: UUID,
    source: Source,
    *,
    phase: Phase,
    stretches: Iterable[Stretch],
    delivery_ids: Iterable[str] | None,
) -> None:
    connection.execute(query("replay", "begin_replay"), {"run_id": run_id, "source": source, "phase": phase})
    for stretch in stretches:
        connection.execute(query("replay", "add_cursor"), {"run_id": run_id, **asdict(stretch)})
    if delivery_ids is not None:
        take_list(connection, "list_in_run", delivery_ids, run_id=run_id)


def standing(connection: psycopg.Connection, run_id: UUID) -> Standing | None:
    cursor = connection.cursor(row_factory=class_row(Standing))
    return cursor.execute(query("replay", "standing"), {"run_id": run_id}).fetchone()


def cursors(connection: psycopg.Connection, run_id: UUID) -> list[TopicCursor]:
    cursor = connection.cursor(row_factory=class_row(TopicCursor))
    return cursor.execute(query("replay", "cursors"), {"run_id": run_id}).fetchall()


def drive(connection: psycopg.Connection, run_id: UUID, driver: str) -> tuple[Wish, Phase] | None:
    """First in each transaction of the driver: what is wished, and the phase. None: the run is over."""
    return connection.execute(query("replay", "drive"), {"run_id": run_id, "driver": driver}).fetchone()


def leave(connection: psycopg.Connection, run_id: UUID, driver: str) -> None:
    connection.execute(query("replay", "leave"), {"run_id": run_id, "driver": driver})


def wish(connection: psycopg.Connection, run_id: UUID, wanted: Wish) -> bool:
    """False where that is wished already, or nothing can be wished any more."""
    return connection.execute(query("replay", "wish"), {"run_id": run_id, "wish": wanted}).fetchone() is not None


def enter_phase(connection: psycopg.Connection, run_id: UUID, phase: Phase) -> None:
    connection.execute(query("replay", "enter_phase"), {"run_id": run_id, "phase": phase})


def advance(connection: psycopg.Connection, run_id: UUID, moved: Advance) -> None:
    connection.execute(query("replay", "advance"), {"run_id": run_id, **asdict(moved)})


def unknown_of(connection: psycopg.Connection, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Places of those messages (delivery_id, key) that are of no delivery here."""
    return unknown_places(connection, "unknown_of", messages)


def select_items(
    connection: psycopg.Connection, run_id: UUID, delivery_ids: Sequence[str], choice: Choice, *, is_listed: bool
) -> dict[str, int]:
    """Take those that fit as items of the run; what it has already stays as it is. How many came, by verdict."""
    text = "\n".join(
        (
            query("replay", "select_items"),
            "and",
            query("replay", "fits"),
            query("replay", "is_wanted") if is_listed else "",
            query("replay", "in_order"),
        )
    )
    parameters = {**choice.parameters(), "run_id": run_id, "delivery_ids": list(delivery_ids)}
    return dict(connection.execute(text.encode(), parameters).fetchall())


def page(
    connection: psycopg.Connection,
    name: Literal["list", "ledger", "dead"],
    run_id: UUID,
    choice: Choice,
    *,
    until: datetime,
    after: Mapping[str, Any],
    rows: int,
) -> list[tuple[str, datetime, str]]:
    """Next deliveries of a source in the ledger: destination, place in time, id."""
    parameters = {**choice.parameters(), **after, "run_id": run_id, "until": until, "page_rows": rows}
    return connection.execute(query("replay", f"page_of_{name}"), parameters).fetchall()


def next_destination(connection: psycopg.Connection, choice: Choice, after: str) -> str | None:
    """By id, of those that the choice names or of all."""
    parameters = {"destination_ids": choice.parameters()["destination_ids"], "after_destination": after}
    row = connection.execute(query("replay", "next_destination"), parameters).fetchone()
    return None if row is None else str(row[0])


def move_ledger_cursor(connection: psycopg.Connection, run_id: UUID, after: Mapping[str, Any]) -> None:
    connection.execute(query("replay", "move_ledger_cursor"), {"run_id": run_id, **after})


def dispatch_items(
    connection: psycopg.Connection,
    run_id: UUID,
    choice: Choice,
    *,
    page_rows: int,
    share: float,
    window_seconds: float,
) -> dict[str, int]:
    """Dispatch the next items as far as their destinations have room; how many got which verdict."""
    parameters = {
        "run_id": run_id,
        "mode": choice.mode,
        "takes_cancelled": choice.parameters()["takes_cancelled"],
        "page_rows": page_rows,
        "share": share,
        "window_seconds": window_seconds,
    }
    return dict(connection.execute(query("replay", "dispatch_items"), parameters).fetchall())


def skip_disabled(connection: psycopg.Connection, run_id: UUID) -> int:
    """Items of destinations that are disabled are skipped; how many."""
    return connection.execute(query("replay", "skip_disabled"), {"run_id": run_id}).rowcount


def forget_items(connection: psycopg.Connection, run_id: UUID, rows: int) -> int:
    """Delete so many at most; how many."""
    return connection.execute(query("replay", "forget_items"), {"run_id": run_id, "rows": rows}).rowcount


def forget_rest(connection: psycopg.Connection, run_id: UUID) -> None:
    """Of a run without items: what else it kept by id."""
    connection.execute(query("replay", "forget_rest"), {"run_id": run_id})


def counts_of_items(connection: psycopg.Connection, run_id: UUID) -> dict[str, int]:
    """Items by verdict; ``waiting`` is what is still to come."""
    return dict(connection.execute(query("replay", "counts_of_items"), {"run_id": run_id}).fetchall())


def has_waiting(connection: psycopg.Connection, run_id: UUID) -> bool:
    return _row(connection.execute(query("replay", "has_waiting"), {"run_id": run_id})) == (True,)


def waits_for(connection: psycopg.Connection, run_id: UUID, limit: int) -> list[tuple[str, str | None]]:
    """Destinations that still have items, and what holds them."""
    return connection.execute(query("replay", "waits_for"), {"run_id": run_id, "limit": limit}).fetchall()


def report(connection: psycopg.Connection, run_id: UUID) -> Iterator[dict[str, Any]]:
    """Every item, in the order of ids. Memory does not grow with them."""
    with connection.transaction(), connection.cursor("replay_report", row_factory=dict_row) as cursor:
        cursor.itersize = REPORT_ROWS
        cursor.execute(query("replay", "report"), {"run_id": run_id})
        yield from cursor


def take_list(connection: psycopg.Connection, statement: str, delivery_ids: Iterable[str], **parameters: object) -> int:
    """Bring ids into the table that a statement fills, each once however often it is given; how many."""
    connection.execute(query("replay", "begin_list"))
    with connection.cursor().copy(query("replay", "copy_list")) as copy:
        for delivery_id in delivery_ids:
            copy.write_row((delivery_id,))
    listed = connection.execute(query("replay", statement), parameters).rowcount
    connection.execute(query("replay", "end_list"))
    return listed


def unknown_places(connection: psycopg.Connection, statement: str, messages: Sequence[tuple[str, str]]) -> list[int]:
    """What a statement about messages (delivery_id, key) answers: the places of those that are of no delivery here."""
    parameters = {"delivery_ids": [message[0] for message in messages], "keys": [message[1] for message in messages]}
    cursor = connection.cursor(row_factory=scalar_row)
    return [int(place) - 1 for place in cursor.execute(query("replay", statement), parameters)]


def _array(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def _pattern(event_type: str) -> str:
    """As LIKE takes it."""
    escaped = event_type.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped[:-1] + "%" if escaped.endswith(".*") or escaped == "*" else escaped


def _row(cursor: psycopg.Cursor) -> tuple[Any, ...]:
    row = cursor.fetchone()
    if row is None:
        raise RuntimeError("such a statement always returns a row")
    return row
