"""Restoring rows of the ledger from what the topics say, for plans (on temporary tables) and for runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from pipeline.ledger.queries import query
from pipeline.ledger.replay_plan import Count, Sampled

NO_RUN = UUID(int=0)
"""Under which a plan keeps its evidence."""
ATTEMPT_ID_MAX = 10**18 - 1
"""Of one that is believed: a message with a higher number is none of ours, and would leave too few for new attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One attempt, as its topic has it."""

    attempt_id: int
    delivery_id: str
    attempt: int
    dispatch_seq: int
    result: str
    outcome: str
    status: int | None
    recorded_at: str
    """RFC 3339."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One dispatch, as its topic has it."""

    delivery_id: str
    destination_id: str
    event_id: str | None
    event_type: str | None
    content_type: str | None
    headers: dict[str, str]
    payload: bytes | None
    message_id: str
    dispatch_seq: int
    logged_at: datetime


def begin_plan(connection: psycopg.Connection) -> None:
    for statement in query("rebuild", "begin_rebuild_plan").split(";"):
        if statement.strip():
            connection.execute(statement.encode())


def gather(connection: psycopg.Connection, run_id: UUID, attempts: Sequence[Evidence]) -> None:
    """Keep what attempts say that the ledger does not. NO_RUN: in the tables of a plan."""
    name = "gather_in_plan" if run_id == NO_RUN else "gather"
    text = f"{query('rebuild', name)} {query('rebuild', 'evidence')}"
    connection.execute(
        text.encode(),
        {
            "run_id": run_id,
            "delivery_ids": [a.delivery_id for a in attempts],
            "attempts": [a.attempt for a in attempts],
            "dispatch_seqs": [a.dispatch_seq for a in attempts],
            "results": [a.result for a in attempts],
            "outcomes": [a.outcome for a in attempts],
            "statuses": [a.status for a in attempts],
            "recorded_at": [a.recorded_at for a in attempts],
        },
    )


def given_attempt_ids(connection: psycopg.Connection) -> int:
    """The last number that an attempt was given; 0 where none was."""
    row = connection.execute(query("rebuild", "given_attempt_ids")).fetchone()
    if row is None:
        raise RuntimeError("a function always returns a row")
    return int(row[0])


def raise_attempt_ids(connection: psycopg.Connection, run_id: UUID, attempts: Sequence[Evidence]) -> None:
    """Let the next attempt get a number above all of these. What is raised, the run has on record, in the same transaction."""
    if attempts:
        proven = max(a.attempt_id for a in attempts)
        connection.execute(query("rebuild", "raise_attempt_ids"), {"run_id": run_id, "proven": proven})


def find(connection: psycopg.Connection, dispatches: Sequence[Logged]) -> None:
    """What a run would do about a batch; no delivery may be in it twice."""
    connection.execute(query("rebuild", "find_rebuilds"), {"run_id": NO_RUN, **_batch(dispatches)})


def count(connection: psycopg.Connection, until: datetime) -> list[Count]:
    cursor = connection.cursor(row_factory=class_row(Count))
    return cursor.execute(query("rebuild", "count_rebuilds"), {"until": until}).fetchall()


def sample(connection: psycopg.Connection, rows: int) -> list[Sampled]:
    """The oldest of those that would be restored."""
    cursor = connection.cursor(row_factory=class_row(Sampled))
    return cursor.execute(query("rebuild", "sample_rebuilds"), {"rows": rows}).fetchall()


def rebuild(connection: psycopg.Connection, run_id: UUID, dispatches: Sequence[Logged]) -> dict[str, int]:
    """Restore a batch; how many got which verdict. No delivery may be in it twice."""
    return dict(connection.execute(query("rebuild", "rebuild"), {"run_id": run_id, **_batch(dispatches)}).fetchall())


def release_rebuilt(
    connection: psycopg.Connection, run_id: UUID, *, after_id: str, before: int, rate_per_second: float, page_rows: int
) -> tuple[str | None, int]:
    """Make the next page of what was rebuilt due along the rate; its last id, and how many there were."""
    parameters = {
        "run_id": run_id,
        "after_id": after_id,
        "before": before,
        "rate_per_second": rate_per_second,
        "page_rows": page_rows,
    }
    last_id, rows = connection.execute(query("rebuild", "release_page"), parameters).fetchone() or (None, 0)
    return last_id, rows


def _batch(dispatches: Sequence[Logged]) -> dict[str, Any]:
    return {
        "messages": Jsonb(
            [
                {
                    "place": place,
                    "delivery_id": d.delivery_id,
                    "destination_id": d.destination_id,
                    "event_id": d.event_id,
                    "event_type": d.event_type,
                    "content_type": d.content_type,
                    "headers": d.headers,
                    "message_id": d.message_id,
                    "dispatch_seq": d.dispatch_seq,
                    "logged_at": d.logged_at.isoformat(),
                }
                for place, d in enumerate(dispatches, start=1)
            ]
        ),
        "payloads": [d.payload for d in dispatches],
    }
