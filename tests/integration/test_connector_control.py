"""An operator's acts on a connector, running or not: pause, resume, reset, status; each on the record."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support.connector_world import (
    ConnectorWorld,
    assert_exactly_once_in_order,
    insert_dispatches,
    wait_until,
    world_of,
)
from tests.support.program import Outrider, program


@pytest.fixture
def world(settings_values: dict[str, object], role_dsns: dict[str, str]) -> ConnectorWorld:
    """Its connectors log in as the role that the documentation gives them."""
    world = world_of(settings_values, postgres_dsn=role_dsns["connector"])
    world.create_topics()
    return world


@pytest.fixture
def connectors_outrider(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
) -> Outrider:
    """With the connector's login, which may look at replication."""
    return program(monkeypatch, capsys, **{**settings_values, "postgres_dsn": role_dsns["connector"]})


def standing_of(outrider: Outrider) -> dict[str, Any]:
    """The last line, because the connector's thread logs to the same place."""
    standing: dict[str, Any] = json.loads(outrider("connector", "status", "--json").stdout.splitlines()[-1])
    return standing


def runs(connection: psycopg.Connection) -> list[tuple[str, str, str, str | None]]:
    """(kind, operator, reason, error) of what people did, in order."""
    return connection.execute(
        "select kind, operator, reason, error from outrider.run where woken_by = 'operator' order by started_at"
    ).fetchall()


def test_a_paused_connector_rests_and_goes_on_where_it_was(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 50, tag="before-")
        world.read_when("dispatch", 50)
        paused = outrider("connector", "pause", "--reason", "broker upgrade", "--operator", "ada")
        assert paused.exit_code == 0
        assert "PostgreSQL keeps WAL from here on" in paused.stdout
        wait_until(lambda: connector.status.state == "paused", lambda: f"it rests ({connector.status})")
        assert connector.status.ready(0.0)[1].startswith("paused: by ada at ")
        insert_dispatches(connection, 50, tag="while-")
        # Stopped and started again, it still rests.
    with world.connector() as connector:
        wait_until(lambda: connector.status.state == "paused", lambda: f"it rests ({connector.status})")
        assert connector.status.rows == 0
        assert len(world.read("dispatch")) == 50
        standing = standing_of(outrider)
        assert standing["is_paused"]
        assert (standing["paused_by"], standing["pause_reason"]) == ("ada", "broker upgrade")
        outbox = standing["tables"][0]
        assert (outbox["table"], outbox["rows"], outbox["is_more"]) == ("outrider.dispatch_outbox", 50, False)
        assert outbox["oldest_seconds"] > 0
        assert outrider("connector", "status").exit_code == 1
        again = outrider("connector", "pause", "--reason", "twice")
        assert "was paused already" in again.stdout
        assert outrider("connector", "resume", "--reason", "done", "--operator", "bo").exit_code == 0
        assert_exactly_once_in_order(world, connection)
        wait_until(
            lambda: standing_of(outrider)["tables"][0]["rows"] == 0,
            lambda: "all is published",
        )
        fine = outrider("connector", "status")
        assert fine.exit_code == 0, fine.stderr
    assert runs(connection) == [
        ("connector.pause", "ada", "broker upgrade", None),
        ("connector.resume", "bo", "done", None),
    ]


def test_a_pause_holds_before_and_while_rows_are_caught_up(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    insert_dispatches(connection, 5_000)
    outrider("connector", "pause", "--reason", "before the first start")
    with world.connector(transaction_rows=10) as connector:
        wait_until(lambda: connector.status.state == "paused", lambda: f"it rests ({connector.status})")
        assert world.read("dispatch") == []
        outrider("connector", "resume", "--reason", "go")
        wait_until(lambda: connector.status.rows > 0, lambda: f"it catches up ({connector.status})")
        outrider("connector", "pause", "--reason", "in the middle")
        wait_until(lambda: connector.status.state == "paused", lambda: f"it rests ({connector.status})")
        outrider("connector", "resume", "--reason", "go on")
        world.streaming(connector)
        assert_exactly_once_in_order(world, connection)


def test_a_pause_outlasts_wal_sender_timeout_and_confirms_nothing(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    login = psycopg.conninfo.conninfo_to_dict(world.config.conninfo)["user"]
    connection.execute(f"alter role \"{login}\" set wal_sender_timeout = '3s'")
    try:
        with world.connector() as connector:
            world.streaming(connector)
            insert_dispatches(connection, 5)
            world.read_when("dispatch", 5)
            outrider("connector", "pause", "--reason", "look")
            wait_until(lambda: connector.status.state == "paused", lambda: f"it rests ({connector.status})")
            found = connection.execute(
                "select active_pid, confirmed_flush_lsn from pg_replication_slots where slot_name = %s",
                [world.config.slot],
            ).fetchone()
            insert_dispatches(connection, 200, payload_bytes=50_000, tag="more-")
            lines = standing_of(outrider)
            assert lines["lag_bytes"] > 200 * 50_000
            connection.execute("select pg_sleep(7)")  # more than twice the sender's patience
            assert (
                found
                == connection.execute(
                    "select active_pid, confirmed_flush_lsn from pg_replication_slots where slot_name = %s",
                    [world.config.slot],
                ).fetchone()
            )
            assert connector.status.reconnects == 0
            outrider("connector", "resume", "--reason", "seen")
            world.read_when("dispatch", 205)
    finally:
        connection.execute(f'alter role "{login}" reset wal_sender_timeout')


def test_a_reset_is_refused_while_a_connector_runs_and_shown_before_it_is_done(
    world: ConnectorWorld,
    connection: psycopg.Connection,
    outrider: Outrider,
    connectors_outrider: Outrider,
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 5)
        world.read_when("dispatch", 5)
        refused = outrider("connector", "reset", "--reason", "new server", "--yes")
        assert refused.exit_code == 1
        assert "another connector works with slot" in refused.stderr
    looked = outrider("connector", "reset", "--reason", "new server")
    assert looked.exit_code == 0
    assert "would forget the position" in looked.stdout
    assert standing_of(outrider)["position_lsn"] is not None
    done = outrider("connector", "reset", "--reason", "new server", "--operator", "ada", "--yes")
    assert done.exit_code == 0, done.stderr
    standing = standing_of(outrider)
    assert standing["position_lsn"] is None
    assert "Kafka holds no position of the slot" in standing["troubles"]
    assert runs(connection) == [("connector.reset", "ada", "new server", None)]
    # The next start finds out by ids that nothing is missing, and what is.
    insert_dispatches(connection, 3, tag="unseen-")
    planned = connectors_outrider("connector", "plan", "--count", "--json").json
    assert (planned["case"], planned["does"]) == ("position missing", "catch up")
    assert [(table["table"], table["missing"]) for table in planned["counts"]] == [
        ("outrider.dispatch_outbox", 3),
        ("outrider.delivery_attempt", 0),
    ]
    assert "create slot" in connectors_outrider("connector", "plan").stdout
    with world.connector() as connector:
        world.streaming(connector)
        assert_exactly_once_in_order(world, connection)


def test_status_says_what_is_missing_before_the_first_start(world: ConnectorWorld, outrider: Outrider) -> None:
    standing = outrider("connector", "status")
    assert standing.exit_code == 1
    assert "trouble: there is no slot" in standing.stderr
    assert outrider("connector", "pause", "--reason", "not yet").stdout.endswith("when it has made one\n")
