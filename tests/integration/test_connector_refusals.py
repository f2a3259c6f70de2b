"""What a connector refuses to start with is one line that says what to do; what is merely away is waited for."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from connectors.errors import SlotActiveError
from connectors.postgres.turn import take_turn
from tests.fixtures.components import StartComponent
from tests.support.connector_world import ConnectorWorld, insert_dispatches, wait_until, world_of

EXIT_SECONDS = 60.0


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    return world_of(settings_values)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


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


def test_a_lost_slot_is_not_replaced_silently(
    world: ConnectorWorld, component: StartComponent, connection: psycopg.Connection
) -> None:
    world.create_topics()
    insert_dispatches(connection, 10)
    with world.connector():
        world.read_when("dispatch", 10)
    connection.execute("select pg_drop_replication_slot(%s)", [world.config.slot])
    insert_dispatches(connection, 10)
    assert "is gone although rows up to" in refusal(component)
    # Somebody makes a slot of that name anew: the rows between are not in it.
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [world.config.slot])
    assert "was made anew or read by somebody else" in refusal(component)
    assert len(world.read("dispatch")) == 10


def test_a_slot_without_a_position_is_not_trusted(
    world: ConnectorWorld, component: StartComponent, connection: psycopg.Connection
) -> None:
    world.create_topics()
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [world.config.slot])
    line = refusal(component)
    assert "Kafka holds no position of it" in line
    # What the line says is what helps.
    assert "select pg_drop_replication_slot(" in line
    connection.execute("select pg_drop_replication_slot(%s)", [world.config.slot])
    with world.connector() as connector:
        world.streaming(connector)


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
