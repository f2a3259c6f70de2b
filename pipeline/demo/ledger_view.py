"""What the demo writes into the ledger as its operator, and reads from it: destinations, states, evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow, class_row

from pipeline.demo.destinations import Target, subscribers
from pipeline.demo.events import ARCHIVED
from pipeline.demo.facts import LedgerAttempt, LedgerDelivery, OutboxRow

LOOPBACK = "127.0.0.0/8"

INSERT_DESTINATION = """
    insert into outrider.destination (
      destination_id, url, start_rate_per_second, burst, concurrency, timeout_seconds, retry_first_delay_seconds,
      retry_factor, retry_max_delay_seconds, retry_max_attempts, allowed_networks)
    values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, array[%s::cidr])
"""
DELIVERIES = """
    select d.delivery_id, d.event_id, d.destination_id, d.state, d.attempt, d.waiting_reason,
           encode(sha256(e.payload), 'hex') as body_sha256
    from outrider.delivery d
    join outrider.event e on e.event_id = d.event_id
"""
ATTEMPTS = """
    select attempt_id::text, delivery_id, attempt, result, encode(payload_sha256, 'hex') as body_sha256
    from outrider.delivery_attempt
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The ledger at one moment."""

    deliveries: list[LedgerDelivery]
    attempts: list[LedgerAttempt]
    event_ids: frozenset[str]
    outbox: list[OutboxRow]
    business_rows: frozenset[str]


def add_destinations(operator: Connection[TupleRow], targets: Sequence[Target], base_url: str) -> None:
    """Make the destinations, their secrets and the subscriptions, in one commit."""
    with operator.transaction():
        for target in targets:
            operator.execute(
                INSERT_DESTINATION,
                (
                    target.destination_id,
                    base_url + target.path,
                    target.start_rate_per_second,
                    target.burst,
                    target.concurrency,
                    target.timeout_seconds,
                    target.retry_first_delay_seconds,
                    target.retry_factor,
                    target.retry_max_delay_seconds,
                    target.retry_max_attempts,
                    LOOPBACK,
                ),
            )
            operator.execute(
                "insert into outrider.destination_secret (destination_id, secret) values (%s, %s)",
                (target.destination_id, target.secret),
            )
        for destination_id in subscribers(targets):
            operator.execute(
                "insert into outrider.subscription (destination_id, event_type) values (%s, %s)",
                (destination_id, ARCHIVED),
            )


def count_states(operator: Connection[TupleRow]) -> dict[str, dict[str, int]]:
    """Destination -> state -> deliveries, now."""
    counts: dict[str, dict[str, int]] = {}
    for destination_id, state, count in operator.execute(
        "select destination_id, state, count(*) from outrider.delivery group by 1, 2"
    ):
        counts.setdefault(destination_id, {})[state] = count
    return counts


def leases_held(operator: Connection[TupleRow]) -> dict[str, int]:
    """Worker -> deliveries that it is sending now."""
    return dict(
        operator.execute("select lease_owner, count(*) from outrider.delivery where state = 'leased' group by 1")
    )


def read_evidence(conninfo: str) -> Evidence:
    """Everything that the report compares, in one snapshot. `conninfo` is one that may read the business table."""
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.cursor(row_factory=class_row(LedgerDelivery)) as cursor:
            deliveries = cursor.execute(DELIVERIES).fetchall()
        with connection.cursor(row_factory=class_row(LedgerAttempt)) as cursor:
            attempts = cursor.execute(ATTEMPTS).fetchall()
        with connection.cursor(row_factory=class_row(OutboxRow)) as cursor:
            outbox = cursor.execute("select message_id::text, reason from outrider.dispatch_outbox").fetchall()
        return Evidence(
            deliveries=deliveries,
            attempts=attempts,
            event_ids=frozenset(key for (key,) in connection.execute("select event_id from outrider.event")),
            outbox=outbox,
            business_rows=frozenset(key for (key,) in connection.execute("select asset_id from media.asset")),
        )
