"""The health listener of a running connector."""

from __future__ import annotations

import psycopg

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
    second = component("connector", health_port=second_port)
    wait_until(
        lambda: "waiting for slot" in get(second_port, "/readyz")[1],
        lambda: f"a standby says what it waits for\n{second.log_tail()}",
    )
    assert get(second_port, "/readyz")[0] == 503
    assert get(second_port, "/livez")[0] == 200
