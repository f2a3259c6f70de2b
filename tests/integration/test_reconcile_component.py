"""``outrider run reconciler`` as a process: woken by its timer and by NOTIFY, patient with its database, ended by SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pipeline.stack.child_process import ChildProcess
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.health import get
from tests.support.ledger_rows import add_delivery, add_destination, connect, delivery, scalar, wait_until

PAST = "2020-01-01T00:00:00Z"
LONG_SECONDS = 3_600.0


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        yield connection


@pytest.fixture
def health_port() -> int:
    (port,) = free_ports(1)
    return port


def wait_until_ready(port: int) -> None:
    wait_until(lambda: get(port, "/readyz")[0] == 200, "the reconciler is ready")


def wait_for_state(connection: psycopg.Connection, delivery_id: str, state: str) -> None:
    wait_until(lambda: delivery(connection, delivery_id)["state"] == state, f"{delivery_id} is {state}")


def test_the_timer_finds_what_becomes_due(component: StartComponent, connection: psycopg.Connection) -> None:
    component("reconciler", reconciler_interval_seconds=0.1)
    delivery_id = add_delivery(connection, "e", "pending", next_attempt_at=PAST)
    wait_for_state(connection, delivery_id, "enqueued")


def test_notify_wakes_it_before_its_timer(
    component: StartComponent, connection: psycopg.Connection, health_port: int
) -> None:
    component("reconciler", reconciler_interval_seconds=LONG_SECONDS, health_port=health_port)
    wait_until_ready(health_port)
    delivery_id = add_delivery(connection, "e", "pending", next_attempt_at=PAST)

    def notified() -> bool:
        # It may not listen yet when it is ready; NOTIFY is no message to rely on, so it is sent again.
        connection.execute("notify outrider_wakeup")
        return bool(delivery(connection, delivery_id)["state"] == "enqueued")

    wait_until(notified, "the delivery is enqueued")
    assert scalar(connection, "select woken_by from outrider.run where kind = 'reconcile'") == "notify"


def test_a_notify_for_nothing_does_nothing(
    component: StartComponent, connection: psycopg.Connection, health_port: int
) -> None:
    component("reconciler", reconciler_interval_seconds=LONG_SECONDS, health_port=health_port)
    wait_until_ready(health_port)
    add_delivery(connection, "e", "pending")

    def seen() -> bool:
        connection.execute("notify outrider_wakeup, 'due: everything'")
        return 'woken_by="notify"' in get(health_port, "/metrics")[1]

    wait_until(seen, "a pass woken by NOTIFY")
    assert scalar(connection, "select count(*) from outrider.run") == 0
    assert scalar(connection, "select state from outrider.delivery") == "pending"


def test_it_makes_partitions_ahead_and_keeps_retention(
    component: StartComponent, connection: psycopg.Connection
) -> None:
    add_delivery(connection, "e", "succeeded", settled_at=PAST)
    connection.execute("update outrider.event set admitted_at = %s", (PAST,))
    day = scalar(connection, "select to_char((clock_timestamp() at time zone 'UTC')::date + 14, 'YYYYMMDD')")
    connection.execute(f"drop table outrider.dispatch_outbox_{day}".encode())
    component("reconciler")
    wait_until(
        lambda: scalar(connection, f"select to_regclass('outrider.dispatch_outbox_{day}') is not null"),
        "the missing partition",
    )
    wait_until(lambda: scalar(connection, "select payload is null from outrider.event"), "its payload is over")


def test_lost_sessions_are_opened_again_and_work_goes_on(
    component: StartComponent, connection: psycopg.Connection, health_port: int
) -> None:
    reconciler = component("reconciler", reconciler_interval_seconds=0.1, health_port=health_port)
    wait_until_ready(health_port)
    for n in range(3):
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name like 'outrider reconciler%'"
        )
        delivery_id = add_delivery(connection, f"e{n}", "pending", next_attempt_at=PAST)
        wait_for_state(connection, delivery_id, "enqueued")
    wait_until(
        lambda: scalar(
            connection,
            "select count(*) = 1 from pg_stat_activity where application_name = 'outrider reconciler wake-ups' "
            "and datname = current_database() and query = 'listen outrider_wakeup'",
        ),
        "it listens again",
    )
    assert reconciler.is_running


def test_a_database_that_refuses_makes_it_unready_and_not_dead(
    component: StartComponent, connection: psycopg.Connection, database: str, postgres_dsn: str, health_port: int
) -> None:
    reconciler = component("reconciler", reconciler_interval_seconds=0.1, health_port=health_port)
    wait_until_ready(health_port)
    name = scalar(connection, "select current_database()")
    with connect(postgres_dsn) as admin:
        admin.execute(f'alter database "{name}" allow_connections false'.encode())
        try:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and application_name "
                "like 'outrider reconciler%%'",
                (name,),
            )
            wait_until(lambda: get(health_port, "/readyz")[0] == 503, "it is not ready", 60)
            assert get(health_port, "/livez")[0] == 200
            assert reconciler.is_running
        finally:
            admin.execute(f'alter database "{name}" allow_connections true'.encode())
    delivery_id = add_delivery(connection, "e", "pending", next_attempt_at=PAST)
    wait_for_state(connection, delivery_id, "enqueued")
    wait_until_ready(health_port)


def test_two_reconcilers_move_each_delivery_once(component: StartComponent, connection: psycopg.Connection) -> None:
    connection.execute("update outrider.destination set start_rate_per_second = 1000, burst = 1000")
    processes = [component("reconciler", reconciler_interval_seconds=0.05, reconciler_page_rows=7) for _ in range(2)]
    for n in range(300):
        add_delivery(connection, f"e{n}", "pending", next_attempt_at=PAST)

    def enqueued() -> bool:
        # A worker would take them: they leave the transport, so that there is room for more.
        connection.execute(
            "update outrider.delivery set state = 'dead', lost_after = null, settled_at = now() "
            "where state = 'enqueued' and dispatch_seq = 2"
        )
        return scalar(connection, "select count(*) from outrider.delivery where state = 'dead'") == 300

    wait_until(enqueued, "all are dispatched", 60)
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox where reason = 'due'") == 300
    assert all(process.is_running for process in processes)


def test_sigterm_ends_it_cleanly(component: StartComponent, connection: psycopg.Connection, health_port: int) -> None:
    reconciler: ChildProcess = component(
        "reconciler", reconciler_interval_seconds=LONG_SECONDS, health_port=health_port
    )
    wait_until_ready(health_port)
    assert reconciler.terminate(20) == 0
    assert scalar(connection, "select count(*) from outrider.run where finished_at is null") == 0


def test_a_schema_that_is_missing_is_one_line(component: StartComponent, empty_database: str) -> None:
    reconciler = component("reconciler", postgres_dsn=empty_database)
    wait_until(lambda: not reconciler.is_running, "it ends")
    assert reconciler.exit_status == 1
    assert "run outrider migrate up" in reconciler.log_tail(5)
    assert "Traceback" not in reconciler.log_tail(50)
