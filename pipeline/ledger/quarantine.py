"""Deliveries whose message lies in quarantine, dispatched anew."""

from __future__ import annotations

import psycopg
from psycopg.rows import scalar_row

from pipeline.ledger.queries import query


def dispatch_again(connection: psycopg.Connection, delivery_id: str, dispatch_seq: int) -> int | None:
    """The number of the new dispatch; None where the delivery has gone on by itself, or is not known."""
    cursor = connection.cursor(row_factory=scalar_row)
    found: int | None = cursor.execute(
        query("quarantine", "dispatch_again"), {"delivery_id": delivery_id, "dispatch_seq": dispatch_seq}
    ).fetchone()
    return found
