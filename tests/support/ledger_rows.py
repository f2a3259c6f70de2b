"""Rows for tests of the ledger: receivers, deliveries in any state, and the whole content for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

DEADLINE_SECONDS = 30.0
SECRET = "whsec_" + "A" * 43 + "="

# What the checks of the table ask for in each state.
STATE_COLUMNS: dict[str, dict[str, str]] = {
    "pending": {"next_attempt_at": "clock_timestamp() + interval '1 hour'"},
    "enqueued": {"lost_after": "clock_timestamp() + interval '1 hour'"},
    "leased": {
        "leased_at": "clock_timestamp()",
        "lease_until": "clock_timestamp() + interval '1 hour'",
        "lease_owner": "'w1'",
    },
    "succeeded": {"settled_at": "clock_timestamp()", "last_outcome": "'success'"},
    "dead": {"settled_at": "clock_timestamp()", "last_outcome": "'rejected'"},
}
STATES = tuple(STATE_COLUMNS)


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)


def add_destination(connection: psycopg.Connection, destination_id: str = "acme", **settings: Any) -> str:
    values = {"destination_id": destination_id, "url": "https://receiver.example/hook", **settings}
    connection.execute(
        sql.SQL("insert into outrider.destination ({}) values ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join(map(sql.Placeholder, values))
        ),
        values,
    )
    connection.execute(
        "insert into outrider.destination_secret (destination_id, secret) values (%s, %s)", (destination_id, SECRET)
    )
    return destination_id


def add_delivery(
    connection: psycopg.Connection, event_id: str, state: str, destination_id: str = "acme", **columns: Any
) -> str:
    """A delivery that lies in ``state`` for an hour, on attempt 1 and dispatch 1, unless ``columns`` say otherwise."""
    row = connection.execute(
        "select delivery_id from outrider.admit(%s, 'test.event', 'body'::bytea, destinations => array[%s]::text[])",
        (event_id, destination_id),
    ).fetchone()
    assert row is not None
    (delivery_id,) = row
    times = dict.fromkeys(
        ("next_attempt_at", "lost_after", "leased_at", "lease_until", "lease_owner", "settled_at", "last_outcome"),
        "null",
    )
    assignments = [
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.SQL(value))
        for name, value in {**times, **STATE_COLUMNS[state], "state": f"'{state}'", "attempt": "1"}.items()
    ]
    connection.execute(
        sql.SQL("update outrider.delivery set {} where delivery_id = %s").format(sql.SQL(", ").join(assignments)),
        (delivery_id,),
    )
    for name, value in columns.items():
        connection.execute(
            sql.SQL("update outrider.delivery set {} = %s where delivery_id = %s").format(sql.Identifier(name)),
            (value, delivery_id),
        )
    return str(delivery_id)


def delivery(connection: psycopg.Connection, delivery_id: str) -> dict[str, Any]:
    row = (
        connection.cursor(row_factory=dict_row)
        .execute("select * from outrider.delivery where delivery_id = %s", (delivery_id,))
        .fetchone()
    )
    assert row is not None
    return row


def ledger(connection: psycopg.Connection) -> dict[str, list[Any]]:
    """Everything that admission and the transitions write, in a comparable order."""
    return {
        table: connection.execute(
            sql.SQL("select t.* from outrider.{} t order by t::text").format(sql.Identifier(table))
        ).fetchall()
        for table in ("event", "delivery", "dispatch_outbox", "delivery_attempt", "run")
    }


def scalar(connection: psycopg.Connection, statement: str, *parameters: Any) -> Any:
    row = connection.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return row[0]


def wait_until(condition: Callable[[], bool], what: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until it holds; fail with ``what`` after the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_seconds:g} s: {what}"
        time.sleep(0.02)
