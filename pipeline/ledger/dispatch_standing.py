"""What the ledger would do with messages of the dispatch topic: counted, and nothing moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import class_row

from pipeline.ledger.queries import query


@dataclass(frozen=True, slots=True)
class DispatchStanding:
    """Of some messages: those that are their delivery's current, unclaimed dispatch, and those of no known delivery."""

    current: int = 0
    unknown: int = 0
    found_until: datetime | None = None
    """When the last of the current ones counts as lost, and the reconciler dispatches it anew."""

    def __add__(self, other: DispatchStanding) -> DispatchStanding:
        times = [time for time in (self.found_until, other.found_until) if time is not None]
        return DispatchStanding(
            self.current + other.current, self.unknown + other.unknown, max(times) if times else None
        )


def standing_of_dispatches(connection: psycopg.Connection, dispatches: Sequence[tuple[str, int]]) -> DispatchStanding:
    """Of these (delivery_id, dispatch_seq); the caller bounds their number."""
    cursor = connection.cursor(row_factory=class_row(DispatchStanding))
    parameters = {
        "delivery_ids": [delivery_id for delivery_id, _ in dispatches],
        "dispatch_seqs": [dispatch_seq for _, dispatch_seq in dispatches],
    }
    return _one(cursor.execute(query("dispatch_standing", "standing_of_dispatches"), parameters).fetchone())


def dispatches_on_the_way(connection: psycopg.Connection) -> DispatchStanding:
    """Of all messages that there may be, in Kafka or on their way to it."""
    cursor = connection.cursor(row_factory=class_row(DispatchStanding))
    return _one(cursor.execute(query("dispatch_standing", "dispatches_on_the_way")).fetchone())


def _one(row: DispatchStanding | None) -> DispatchStanding:
    if row is None:
        raise RuntimeError("an aggregate always returns one row")
    return row
