"""PostgreSQL fails in every way that a network, a host or an operator can make it fail; the connector recovers alone.

After each fault a read_committed reader finds every committed row once, no other, and the order of each key, and while
it lasted, readiness told of it.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from connectors.postgres import patience, replication
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.connector_world import wait_until, world_of
from tests.support.fault_world import FaultWorld, wait_not_ready
from tests.support.health import get
from tests.support.tcp_proxy import TcpProxy

WAL_SENDER_SECONDS = 2


@pytest.fixture
def faults(settings_values: dict[str, object], database: str) -> FaultWorld:
    """The connector's own connections go where ``settings_values`` say."""
    world = world_of(settings_values)
    world.create_topics()
    return FaultWorld(world, database)


@pytest.fixture
def proxy(database: str) -> Iterator[TcpProxy]:
    with TcpProxy(port_of(database)) as proxy:
        yield proxy


def port_of(dsn: str) -> int:
    return int(str(conninfo_to_dict(dsn)["port"]))


def through(proxy: TcpProxy, dsn: str) -> str:
    """The same database behind the proxy, with a server and a client that are soon impatient."""
    return make_conninfo(
        dsn,
        port=proxy.port,
        connect_timeout=2,
        # A client's first word is then the one that a server refuses in words.
        sslmode="disable",
        gssencmode="disable",
        options=f"-c wal_sender_timeout={WAL_SENDER_SECONDS}s",
    )


def refusal(sqlstate: str, message: str) -> bytes:
    """What a server sends that cannot take a connection now."""
    fields = b"".join(
        kind + text.encode() + b"\0" for kind, text in ((b"S", "FATAL"), (b"C", sqlstate), (b"M", message))
    )
    return b"E" + struct.pack(">i", len(fields) + 5) + fields + b"\0"


def test_postgresql_is_down_until_it_is_started_again(
    faults: FaultWorld, embedded_stack: EmbeddedStack, component: StartComponent
) -> None:
    (health_port,) = free_ports(1)
    connector = component("connector", health_port=health_port)
    wait_until(lambda: get(health_port, "/readyz")[0] == 200, lambda: f"it is ready\n{connector.log_tail()}")
    pid = connector.pid
    faults.write()
    embedded_stack.postgres.stop()
    try:
        wait_until(
            lambda: get(health_port, "/readyz")[0] == 503 and "cannot be reached" in get(health_port, "/readyz")[1],
            lambda: f"readiness tells of it\n{get(health_port, '/readyz')}",
        )
        assert get(health_port, "/livez")[0] == 200
    finally:
        embedded_stack.postgres.start()
    wait_until(lambda: get(health_port, "/readyz")[0] == 200, lambda: f"it is ready again\n{connector.log_tail()}")
    faults.judge()
    assert connector.is_running
    assert connector.pid == pid, "it recovers by itself"


def test_a_login_that_is_refused_is_named_and_tried_again(faults: FaultWorld, role_dsns: dict[str, str]) -> None:
    login = conninfo_to_dict(role_dsns["connector"])
    with (
        faults.connector(conninfo=role_dsns["connector"]) as connector,
        psycopg.connect(faults.database, autocommit=True, cursor_factory=psycopg.ClientCursor) as admin,
    ):
        faults.write()
        change = sql.SQL("alter role {} password {}")
        role = sql.Identifier(str(login["user"]))
        admin.execute(change.format(role, sql.Literal("another")))
        try:
            admin.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
                [faults.world.config.slot],
            )
            faults.write()
            wait_not_ready(connector, "PostgreSQL refuses the login")
        finally:
            admin.execute(change.format(role, sql.Literal(str(login["password"]))))
        faults.judge(connector)


@pytest.mark.parametrize(
    ("sqlstate", "message"),
    [
        ("57P03", "the database system is starting up"),
        ("53300", "sorry, too many clients already"),
    ],
)
def test_a_server_that_takes_no_connection_yet_is_waited_for(
    faults: FaultWorld, proxy: TcpProxy, sqlstate: str, message: str
) -> None:
    with faults.connector(conninfo=through(proxy, faults.database)) as connector:
        faults.write()
        proxy.answer(refusal(sqlstate, message))
        faults.write()
        wait_not_ready(connector, message)
        proxy.recover()
        faults.judge(connector)


def test_a_server_in_recovery_is_waited_for_also_at_the_first_start(faults: FaultWorld, proxy: TcpProxy) -> None:
    proxy.answer(refusal("57P03", "the database system is in recovery mode"))
    with faults.world.connector(conninfo=through(proxy, faults.database), backoff_max_seconds=0.5) as connector:
        wait_not_ready(connector, "in recovery mode")
        proxy.recover()
        faults.judge(connector)


def test_a_half_open_connection_is_noticed_and_replaced(faults: FaultWorld, proxy: TcpProxy) -> None:
    with faults.connector(conninfo=through(proxy, faults.database)) as connector:
        faults.write()
        proxy.fall_silent()
        faults.write()
        wait_not_ready(connector, "silent", "timeout expired")
        proxy.recover()
        faults.judge(connector)


def test_a_server_that_hangs_while_it_is_asked_is_given_up(
    faults: FaultWorld, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (patience, replication):
        monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", 1.0)
    with faults.connector(conninfo=through(proxy, faults.database)) as connector:
        # The new session gets so many answers: in the turn's login, in its questions, in the stream's.
        for answers in (2, 9, 16):
            faults.world.streaming(connector)
            faults.write(2)
            proxy.fall_silent_after(answers)
            wait_until(lambda: proxy.is_silent, lambda: f"the server falls silent after {answers} answers")  # noqa: B023
            wait_not_ready(connector, "not answered", "timeout expired", "silent")
            proxy.recover()
        faults.judge(connector)


def test_a_slow_network_delays_rows_and_nothing_else(faults: FaultWorld, database: str) -> None:
    with (
        TcpProxy(port_of(database), buffer_bytes=2_048, delay_seconds=0.005) as proxy,
        faults.connector(conninfo=through(proxy, database)) as connector,
    ):
        reconnects = connector.status.reconnects
        for _ in range(3):
            faults.write(1_000)
        faults.judge(connector)
        assert connector.status.reconnects == reconnects


def test_a_database_that_is_stopped_and_goes_on_is_told_of(faults: FaultWorld, embedded_stack: EmbeddedStack) -> None:
    impatient = make_conninfo(faults.database, options=f"-c wal_sender_timeout={WAL_SENDER_SECONDS}s")
    with faults.connector(conninfo=impatient) as connector, psycopg.connect(faults.database, autocommit=True) as admin:
        row = admin.execute(
            "select active_pid from pg_replication_slots where slot_name = %s", [faults.world.config.slot]
        ).fetchone()
        assert row is not None
        os.kill(row[0], signal.SIGSTOP)
        try:
            faults.write()
            wait_not_ready(connector, "silent", "slot")
        finally:
            os.kill(row[0], signal.SIGCONT)
        faults.judge(connector)
