"""What a replay would do, counted on temporary tables of the session, so that nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
import psycopg
from psycopg.rows import class_row

from pipeline.ledger.queries import query
from pipeline.ledger.replay import Choice, take_list, unknown_places

COUNT_TIMEOUT = "15min"
"""Of a statement that counts a whole plan."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries of one kind in a plan. The verdict is ``replay``, or why they would be left."""

    destination_id: str
    state: str
    age: str
    """Since admission."""
    verdict: str
    deliveries: int


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    delivery_id: str
    destination_id: str
    state: str
    last_outcome: str | None
    created_at: datetime


def database_clock(connection: psycopg.Connection) -> datetime:
    (clock,) = connection.execute("select clock_timestamp()").fetchone() or (None,)
    if not isinstance(clock, datetime):
        raise TypeError("a clock gives a time")
    return clock


def begin_plan(connection: psycopg.Connection) -> None:
    for statement in query("replay", "begin_plan").split(";"):
        if statement.strip():
            connection.execute(statement.encode())
    connection.execute(f"set statement_timeout = '{COUNT_TIMEOUT}'")


def list_in_plan(connection: psycopg.Connection, delivery_ids: Iterable[str]) -> tuple[int, int]:
    """The ids that narrow the plan: how many, each counted once, and how many of them are of no delivery here."""
    listed = take_list(connection, "list_in_plan", delivery_ids)
    (unknown,) = connection.execute(query("replay", "unknown_of_list")).fetchone() or (0,)
    return listed, unknown


def find_in_plan(connection: psycopg.Connection, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Deliveries of messages (delivery_id, key); the places of those that are of no delivery here."""
    return unknown_places(connection, "find_in_plan", messages)


def count_plan(
    connection: psycopg.Connection, origin: str, choice: Choice, *, until: datetime, is_listed: bool
) -> list[Count]:
    """``origin``: topic, list, ledger or dead."""
    cursor = connection.cursor(row_factory=class_row(Count))
    text = _plan_text("counts", origin, is_listed) + " group by 1, 2, 3, 4 order by 1, 3, 2, 4"
    return cursor.execute(text.encode(), {**choice.parameters(), "until": until}).fetchall()


def sample_plan(
    connection: psycopg.Connection, origin: str, choice: Choice, *, until: datetime, is_listed: bool, rows: int
) -> list[Sampled]:
    """The oldest of those that would be replayed."""
    cursor = connection.cursor(row_factory=class_row(Sampled))
    text = (
        f"{_plan_text('sample', origin, is_listed)} {query('replay', 'is_replayable')} "
        "order by d.created_at, d.delivery_id limit %(rows)s"
    )
    return cursor.execute(text.encode(), {**choice.parameters(), "until": until, "rows": rows}).fetchall()


def _plan_text(head: str, origin: str, is_listed: bool) -> str:
    parts = [query("replay", head), query("replay", f"from_{origin}"), "and", query("replay", "fits")]
    if is_listed and origin != "list":
        parts.append(query("replay", "is_wanted_in_plan"))
    return "\n".join(parts)
