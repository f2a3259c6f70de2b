"""The health listener of a running connector."""

from __future__ import annotations

import psycopg

from connectors.control import Pause, Subject
from connectors.kafka.control_log import write_control
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.connector_world import insert_dispatches, wait_until, world_of
from tests.support.health import get


def test_readiness_and_counters_are_told(
    settings_values: dict[str, object], database: str, component: StartComponent
) -> None:
    world = world_of(settings_values)
    world.create_topics()
    first_port, second_port = free_ports(2)
    first = component("connector", health_port=first_port)
    wait_until(lambda: get(first_port, "/readyz") == (200, "streaming\n"), lambda: f"it is ready\n{first.log_tail()}")
    with psycopg.connect(database, autocommit=True) as connection:
        insert_dispatches(connection, 25)
    wait_until(
        lambda: "outrider_connector_rows_total 25.0" in get(first_port, "/metrics")[1],
        lambda: f"25 rows are counted\n{get(first_port, '/metrics')[1]}",
    )
    expect_metrics(
        first_port,
        'outrider_connector_unpublished_rows{table="outrider.dispatch_outbox"} 0.0',
        'outrider_connector_oldest_unpublished_seconds{table="outrider.dispatch_outbox"} 0.0',
        'outrider_connector_slot_wal{wal_status="reserved"} 1.0',
        'outrider_connector_reconnects_total{cause="kafka"} 0.0',
        'outrider_connector_commit_seconds_bucket{le="+Inf"}',
        "outrider_connector_held_keys 0.0",
        "outrider_connector_paused 0.0",
    )
    second = component("connector", health_port=second_port)
    wait_until(
        lambda: "waiting for slot" in get(second_port, "/readyz")[1],
        lambda: f"a standby says what it waits for\n{second.log_tail()}",
    )
    assert get(second_port, "/readyz")[0] == 503
    assert get(second_port, "/livez")[0] == 200


def test_a_pause_and_what_waits_meanwhile_are_told(
    settings_values: dict[str, object], database: str, component: StartComponent
) -> None:
    world = world_of(settings_values)
    world.create_topics()
    (port,) = free_ports(1)
    connector = component("connector", health_port=port)
    wait_until(lambda: get(port, "/readyz")[0] == 200, lambda: f"it is ready\n{connector.log_tail()}")
    with psycopg.connect(database, autocommit=True) as connection:
        insert_dispatches(connection, 1)
        world.read_when("dispatch", 1)
        subject = Subject(database=connection.info.dbname, slot=world.config.slot, kind="pause")
        wish = Pause(is_paused=True, operator="ada", reason="look", at="2026-11-30T12:00:00Z")
        write_control(world.config.kafka, world.config.control_topic, subject, wish)
        wait_until(
            lambda: get(port, "/readyz") == (503, "paused: by ada at 2026-11-30T12:00:00Z: look\n"),
            lambda: f"it rests\n{connector.log_tail()}",
        )
        insert_dispatches(connection, 7, tag="while-")
    expect_metrics(
        port,
        'outrider_connector_unpublished_rows{table="outrider.dispatch_outbox"} 7.0',
        'outrider_connector_unpublished_rows{table="outrider.delivery_attempt"} 0.0',
        "outrider_connector_paused 1.0",
    )


def expect_metrics(port: int, *lines: str) -> None:
    """Wait until the listener shows them all at once."""
    wait_until(
        lambda: all(line in get(port, "/metrics")[1] for line in lines),
        lambda: f"{lines} are shown\n{get(port, '/metrics')[1]}",
    )
