"""``outrider connector plan`` says what a start would do, for people and for programs, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from connectors.kafka.position import position_key, read_position
from tests.support.connector_world import ConnectorWorld, drop_slot, insert_dispatches, world_of
from tests.support.program import Outrider, program


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    return world_of(settings_values)


@pytest.fixture
def repair() -> str:
    return "automatic"


@pytest.fixture
def login() -> str:
    return "operator"


@pytest.fixture
def outrider(
    *,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
    repair: str,
    login: str,
) -> Outrider:
    """As an operator, whose role may not replicate, unless the test has another login."""
    values = {**settings_values, "postgres_dsn": role_dsns[login], "connector_repair": repair}
    return program(monkeypatch, capsys, **values)


def planned(outrider: Outrider, *options: str) -> dict[str, Any]:
    """The last line, because a connector's thread logs to the same place."""
    result = outrider("connector", "plan", "--json", *options)
    return {"exit_code": result.exit_code, **json.loads(result.stdout.splitlines()[-1])}


def state_of(world: ConnectorWorld, connection: psycopg.Connection) -> object:
    """What a plan must leave as it is."""
    position = read_position(
        world.kafka,
        world.config.positions_topic,
        position_key(connection.info.dbname, world.config.slot),
        deadline_seconds=30,
        while_waiting=lambda: None,
    )
    slots = connection.execute(
        "select slot_name, restart_lsn::text, confirmed_flush_lsn::text from pg_replication_slots where database = %s",
        [connection.info.dbname],
    ).fetchall()
    return position, slots, world.read("dispatch"), world.read("quarantine")


def test_a_plan_tells_case_steps_and_counts_and_changes_nothing(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    missing_topic = outrider("connector", "plan")
    assert (missing_topic.exit_code, "run outrider topics apply" in missing_topic.stderr) == (1, True)
    world.create_topics()
    insert_dispatches(connection, 25)
    before = state_of(world, connection)
    first = planned(outrider, "--count")
    assert (first["does"], first["case"]) == ("catch up", "first start")
    assert first["counts"][0] == {"table": "outrider.dispatch_outbox", "rows": 25, "missing": 25, "since": None}
    assert state_of(world, connection) == before
    with world.connector() as connector:
        world.streaming(connector)
        running = planned(outrider)
        assert (running["does"], running["counts"]) == ("resume", None)
        assert running["steps"][0].startswith("wait: a connection")
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 7)
    before = state_of(world, connection)
    broken = planned(outrider, "--count")
    assert (broken["exit_code"], broken["does"], broken["case"]) == (0, "catch up", "slot missing")
    assert broken["counts"][0]["missing"] == 7
    text = outrider("connector", "plan", "--count")
    assert "slot missing" in text.stdout
    assert f"create slot {world.config.slot}" in text.stdout
    assert state_of(world, connection) == before


@pytest.mark.parametrize("login", ["connector"])
def test_the_connectors_login_may_ask_too(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    world.create_topics()
    insert_dispatches(connection, 3)
    asked = planned(outrider, "--count")
    assert (asked["exit_code"], asked["does"], asked["counts"][0]["missing"]) == (0, "catch up", 3)


@pytest.mark.parametrize("repair", ["refuse"])
def test_a_plan_to_refuse_ends_with_1_and_names_the_command(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    world.create_topics()
    with world.connector() as connector:
        world.streaming(connector)
    fine = planned(outrider)
    assert (fine["exit_code"], fine["does"]) == (0, "resume")
    drop_slot(connection, world.config.slot)
    refused = planned(outrider)
    assert (refused["exit_code"], refused["does"], refused["case"]) == (1, "refuse", "slot missing")
    assert "OUTRIDER_CONNECTOR_REPAIR=automatic" in refused["help"]
    assert "OUTRIDER_CONNECTOR_REPAIR=automatic" in outrider("connector", "plan").stderr
