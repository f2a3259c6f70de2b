"""What a connector refuses to start with is one line that says what to do; what is merely away is waited for."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from connectors.errors import SlotActiveError
from connectors.postgres.turn import take_turn
from tests.fixtures.components import StartComponent
from tests.support.connector_world import (
    ConnectorWorld,
    assert_exactly_once_in_order,
    drop_slot,
    insert_dispatches,
    wait_until,
    world_of,
)

EXIT_SECONDS = 60.0


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    return world_of(settings_values)


def refusal(component: StartComponent, **settings: object) -> str:
    """Start it, wait for its end, and return its last line; it must have ended with 1."""
    process = component("connector", **settings)
    assert process.wait(EXIT_SECONDS) == 1, process.log_tail()
    last = process.log_tail(1).strip()
    assert last.startswith("outrider: "), process.log_tail()
    assert "Traceback" not in process.log_tail()
    return last


def test_a_missing_topic_names_the_command_that_makes_it(world: ConnectorWorld, component: StartComponent) -> None:
    assert "does not exist in Kafka: run outrider topics apply" in refusal(component)


def test_a_missing_publication_names_the_command_that_makes_it(
    world: ConnectorWorld, component: StartComponent, connection: psycopg.Connection
) -> None:
    world.create_topics()
    assert "publication nowhere does not exist: run outrider migrate up" in refusal(
        component, connector_publication="nowhere"
    )
    connection.execute("alter publication outrider set (publish_via_partition_root = false)")
    assert "publish_via_partition_root" in refusal(component)


def test_a_wrong_password_is_not_tried_again(
    world: ConnectorWorld, component: StartComponent, role_dsns: dict[str, str]
) -> None:
    dsn = make_conninfo(role_dsns["connector"], password="wrong")
    assert "PostgreSQL refuses the login" in refusal(component, postgres_dsn=dsn)


def test_a_role_without_replication_is_named(
    world: ConnectorWorld, component: StartComponent, role_dsns: dict[str, str]
) -> None:
    world.create_topics()
    assert "replication" in refusal(component, postgres_dsn=role_dsns["worker"]).lower()


def test_slot_and_position_at_odds_are_refused_with_the_command_that_mends_them_where_the_policy_says_so(
    world: ConnectorWorld, component: StartComponent, connection: psycopg.Connection
) -> None:
    world.create_topics()
    insert_dispatches(connection, 10)
    with world.connector():
        world.read_when("dispatch", 10)
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 10)
    line = refusal(component, connector_repair="refuse")
    assert "slot missing: slot" in line
    assert "OUTRIDER_CONNECTOR_REPAIR=automatic outrider run connector" in line
    assert len(world.read("dispatch")) == 10
    # What the line says is what helps, under the component's own role too.
    component("connector", connector_repair="automatic")
    assert_exactly_once_in_order(world, connection)


def test_services_that_are_not_up_yet_are_waited_for(world: ConnectorWorld, component: StartComponent) -> None:
    world.create_topics()
    for setting in ({"kafka_bootstrap_servers": "127.0.0.1:1"}, {"postgres_dsn": "host=127.0.0.1 port=1 dbname=x"}):
        process = component("connector", **setting)
        wait_until(lambda: "no rows flow" in process.log_tail(), lambda: f"it says why\n{process.log_tail()}")  # noqa: B023
        assert process.is_running
        assert process.terminate(30) == 0


def test_a_connector_waits_while_another_works_with_the_slot(world: ConnectorWorld, database: str) -> None:
    """Also before the slot exists: what one makes on a first start, another would drop as the rest of a broken one."""
    slot = world.settings.connector_slot
    world.create_topics()
    with world.connector() as connector:
        world.streaming(connector)
        with pytest.raises(SlotActiveError, match="another connector works with slot"):
            take_turn(database, slot)
    with take_turn(database, f"{slot}_of_another"), take_turn(database, slot) as turn, world.connector() as connector:
        wait_until(lambda: connector.status.state == "waiting for slot", lambda: connector.status.state)
        turn.close()
        world.streaming(connector)
