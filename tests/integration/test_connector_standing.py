"""What waits for the connector is known cheaply, however many rows there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from connectors.postgres.standing import ROWS_COUNTED_MAX, Unpublished, slot_standing, unpublished, unpublished_query
from pipeline.cli.run_connector import outbox_routes
from pipeline.settings import load_settings
from tests.fixtures.databases import fresh_database

ROWS = 300_000
PAGES_MAX = 2_000
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def outbox(postgres_dsn: str, migrated_template: str) -> Iterator[psycopg.Connection]:
    """Rows of 300 000 seconds, one each, the last of them now."""
    with (
        fresh_database(postgres_dsn, template=migrated_template) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute(
            f"""
            insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id,
                                                  event_type, content_type, headers, payload, reason, created_at)
            select gen_random_uuid(), 'd' || n, 1, 'acme', 'e' || n, 't', 'text/plain', '{{}}', '', 'admitted',
                   clock_timestamp() - make_interval(secs => {ROWS} - n)
            from generate_series(1, {ROWS}) n
            """.encode()
        )
        connection.execute("analyze outrider.dispatch_outbox")
        yield connection


def as_of(connection: psycopg.Connection, seconds_ago: float) -> int:
    """That moment by the database's clock, in microseconds since 2000."""
    row = connection.execute("select clock_timestamp() - make_interval(secs => %s)", [seconds_ago]).fetchone()
    assert row is not None
    return int((row[0] - EPOCH).total_seconds() * 1_000_000)


def test_rows_after_a_time_are_counted_up_to_a_bound_with_the_age_of_the_first(outbox: psycopg.Connection) -> None:
    dispatches, attempts = outbox_routes(load_settings())
    none = Unpublished(0, is_more=False, oldest_seconds=0.0)
    assert unpublished(outbox, attempts, as_of(outbox, 3_600)) == none
    assert unpublished(outbox, dispatches, as_of(outbox, -3_600)) == none
    newest = unpublished(outbox, dispatches, as_of(outbox, 5_000))
    assert newest is not None
    # The rows were written some time ago, so a few of those seconds have none.
    assert 4_000 < newest.rows <= 5_000
    assert newest.rows - 1 < newest.oldest_seconds <= 5_001
    everything = unpublished(outbox, dispatches, as_of(outbox, 10 * ROWS))
    assert everything is not None
    assert (everything.rows, everything.is_more) == (ROWS_COUNTED_MAX, True)
    assert everything.oldest_seconds >= ROWS - 1


def test_the_first_of_them_is_found_by_an_index(outbox: psycopg.Connection) -> None:
    query = unpublished_query(outbox_routes(load_settings())[0])
    assert query is not None
    row = outbox.execute(
        b"explain (analyze, buffers, format json) " + query.as_bytes(outbox),
        {"as_of": datetime.now(UTC), "limit": ROWS_COUNTED_MAX},
    ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < PAGES_MAX


def test_a_slot_that_is_not_there_has_no_standing(outbox: psycopg.Connection) -> None:
    assert slot_standing(outbox, "nowhere") is None
