"""The health listener of a running connector."""

from __future__ import annotations

import urllib.error
import urllib.request

import psycopg

from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.connector_world import insert_dispatches, wait_until, world_of


def get(port: int, path: str) -> tuple[int, str]:
    """(status, body); status 0 while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


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
