"""Failovers of a real pair of servers: with the slot, without it, and with commits that were lost on the way."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from structlog.testing import capture_logs

from connectors.start_plan import RefusedStartError, StartCase
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.postgres_programs import find_postgres
from pipeline.stack.postgres_server import PostgresServer
from pipeline.stack.system_user import server_user
from tests.support.connector_world import ConnectorWorld, insert_dispatches, wait_until, world_of

BASEBACKUP_SECONDS = 120


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    world = world_of(settings_values)
    world.create_topics()
    return world


class Standby:
    """A copy of the session's server that follows it until it is told not to, and can be promoted."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        self.dsn = make_conninfo(server.dsn, dbname=database)

    def wait_for(self, connection: psycopg.Connection) -> None:
        """Until it has replayed all that the primary has written."""
        row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
        with psycopg.connect(self.dsn, autocommit=True) as standby:
            wait_until(
                lambda: standby.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() == (True,),
                lambda: "the standby follows",
            )

    def stop_following(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as standby:
            standby.execute("alter system set primary_conninfo = ''")
            standby.execute("select pg_reload_conf()")
            wait_until(
                lambda: standby.execute("select count(*) from pg_stat_wal_receiver").fetchone() == (0,),
                lambda: "it follows no more",
            )

    def copy_slot(self, slot: str, connection: psycopg.Connection) -> None:
        """Let the standby copy the primary's slots, until it has this one for good.

        A copy is for good once the slot has moved past what the standby has kept for it, so the slot must be in use.
        """
        with psycopg.connect(self.dsn, autocommit=True) as standby:
            standby.execute("alter system set sync_replication_slots = on")
            standby.execute("select pg_reload_conf()")

            def is_copied() -> bool:
                insert_dispatches(connection, 1, tag=f"while-copying-{secrets.token_hex(8)}-")
                connection.execute("select pg_log_standby_snapshot()")
                found = standby.execute(
                    "select synced and not temporary from pg_replication_slots where slot_name = %s", [slot]
                ).fetchone()
                return found == (True,)

            wait_until(is_copied, lambda: "the slot is copied")

    def promote(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as standby:
            assert standby.execute("select pg_promote()").fetchone() == (True,)


@contextmanager
def standby_of(stack: EmbeddedStack, directory: Path, database: str) -> Iterator[Standby]:
    """Under a physical slot, with what copying logical slots needs; all of it gone again at the end."""
    user = server_user()
    directory.chmod(0o711)
    server = PostgresServer(directory, directory / "log", fast=True)
    shutil.copy(stack.postgres.directory / "password", directory / "password")
    data = server.data_directory
    data.mkdir(mode=0o700)
    if user is not None:
        shutil.chown(data, user.uid, user.gid)
    primary = conninfo_to_dict(stack.postgres_dsn)
    slot = f"standby_{database[-12:]}"
    with psycopg.connect(stack.postgres_dsn, autocommit=True) as admin:
        admin.execute("select pg_create_physical_replication_slot(%s, true)", [slot])
        try:
            subprocess.run(
                [
                    find_postgres(user).folder / "pg_basebackup",
                    *("--dbname", make_conninfo(stack.postgres_dsn, dbname="postgres"), "--pgdata", data),
                    *("--slot", slot, "--checkpoint", "fast", "--no-sync", "--write-recovery-conf"),
                ],
                check=True,
                capture_output=True,
                text=True,
                cwd="/",
                timeout=BASEBACKUP_SECONDS,
                **({} if user is None else user.popen_arguments()),
            )
            with (data / "postgresql.auto.conf").open("a") as file:
                follow = make_conninfo(**{**primary, "dbname": "postgres"})
                file.write(f"primary_conninfo = '{follow}'\nhot_standby_feedback = on\n")
            server.start()
            yield Standby(server, database)
        finally:
            server.stop()
            wait_until(
                lambda: (
                    admin.execute("select active from pg_replication_slots where slot_name = %s", [slot]).fetchone()
                    == (False,)
                ),
                lambda: "the standby has left",
            )
            admin.execute("select pg_drop_replication_slot(%s)", [slot])


@pytest.fixture
def standby(embedded_stack: EmbeddedStack, connection: psycopg.Connection) -> Iterator[Standby]:
    # Not in a folder of the test's own, where another system user could not go.
    with (
        tempfile.TemporaryDirectory(prefix="outrider-standby-") as directory,
        standby_of(embedded_stack, Path(directory), connection.info.dbname) as standby,
    ):
        yield standby


def ids(world: ConnectorWorld) -> list[str]:
    return [record.headers["delivery_id"].decode() for record in world.read("dispatch")]


def expected(connection: psycopg.Connection) -> list[str]:
    return [row[0] for row in connection.execute("select delivery_id from outrider.dispatch_outbox").fetchall()]


def goes_on_at(world: ConnectorWorld, dsn: str, case: StartCase) -> None:
    """Start at the new primary, see what it finds, and that each of its rows is published once."""
    with (
        psycopg.connect(dsn, autocommit=True) as promoted,
        capture_logs() as logs,
        world.connector(conninfo=dsn) as connector,
    ):
        world.streaming(connector)
        insert_dispatches(promoted, 20, tag="after-")
        rows = expected(promoted)
        wait_until(lambda: set(rows) <= set(ids(world)), lambda: f"all are published ({connector.status})")
        published = [one for one in ids(world) if one in set(rows)]
        assert sorted(published) == sorted(rows)
    assert next(entry["case"] for entry in logs if entry["event"] == "starting") == case.value


def test_a_failover_without_the_slot_misses_nothing(
    world: ConnectorWorld, connection: psycopg.Connection, standby: Standby
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 40, tag="published-")
        world.read_when("dispatch", 40)
    insert_dispatches(connection, 30, tag="on-both-")
    standby.wait_for(connection)
    standby.stop_following()
    standby.promote()
    goes_on_at(world, standby.dsn, StartCase.SLOT_MISSING)
    assert len(ids(world)) == 90


def test_a_failover_that_lost_commits_is_told_and_the_rows_of_the_new_history_are_published(
    world: ConnectorWorld, connection: psycopg.Connection, standby: Standby
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 40, tag="published-")
        world.read_when("dispatch", 40)
        standby.wait_for(connection)
        standby.stop_following()
        insert_dispatches(connection, 30, tag="lost-")
        world.read_when("dispatch", 70)
    standby.promote()
    with psycopg.connect(standby.dsn, autocommit=True) as promoted:
        insert_dispatches(promoted, 10, tag="new-")
    goes_on_at(world, standby.dsn, StartCase.HISTORY_LOST)
    # What readers have seen stays; the new primary does not know it.
    assert sum(one.startswith("lost-") for one in ids(world)) == 30
    # The server that was left behind is no way back.
    with pytest.raises(RefusedStartError, match="server left behind"), world.connector() as connector:
        world.streaming(connector)


def test_a_failover_with_the_slot_goes_on_as_if_nothing_had_been(
    world: ConnectorWorld, connection: psycopg.Connection, standby: Standby
) -> None:
    if connection.info.server_version < 170_000:
        pytest.skip("slots are copied to standbys since PostgreSQL 17")
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 40, tag="published-")
        world.read_when("dispatch", 40)
        standby.copy_slot(world.config.slot, connection)
    insert_dispatches(connection, 30, tag="on-both-")
    standby.wait_for(connection)
    standby.stop_following()
    standby.promote()
    goes_on_at(world, standby.dsn, StartCase.FAILED_OVER)
    assert len(ids(world)) == len(set(ids(world)))


def test_a_standby_is_waited_for_until_it_is_promoted(
    world: ConnectorWorld, connection: psycopg.Connection, standby: Standby
) -> None:
    insert_dispatches(connection, 10, tag="on-both-")
    standby.wait_for(connection)
    with world.connector(conninfo=standby.dsn) as connector:
        wait_until(
            lambda: "in recovery" in connector.status.reason, lambda: f"the reason is named ({connector.status})"
        )
        standby.stop_following()
        standby.promote()
        world.streaming(connector)
        assert len(world.read_when("dispatch", 10)) == 10
