"""Invariant 11 while each call that the connector makes to PostgreSQL and Kafka fails once, one after the other.

``make prove NAME=connector-calls ARGS="--modes broken unanswered"`` runs a small life of a connector (first start
over rows that are there, small, large and rolled-back transactions, an end, a second start) again and again: the
first call of it fails, then the second, and so on until a life passes untouched. After each the topics must hold what
the tables hold, and the connector must have recovered by itself. ``--first`` and ``--step`` leave lives out; the test
suite does so.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import structlog
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from connectors.connector import Connector
from pipeline.ledger.migrate import migrate_up
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.login_roles import create_login_roles
from tests.proofs.report import finish, progress
from tests.support.connector_world import ConnectorWorld, wait_until, world_of
from tests.support.failing_calls import FailingCalls, Mode
from tests.support.outbox_judge import OutboxJudge
from tests.support.outbox_load import Known, write_dispatches

LIVES_MAX = 2_000
PARTITIONS = 2
TRANSACTION_ROWS = 3
LARGE_ROWS = 7
FAST_BACKOFF_SECONDS = 0.2
ADMIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Life:
    """What became of one life. ``failed_call`` is None where it passed untouched."""

    mode: Mode
    fail_at: int
    failed_call: str | None
    calls: int
    faults: list[str]


class Bench:
    """Servers, a migrated database, and topics and a slot for each life."""

    def __init__(self, *, database: str, connector_dsn: str, bootstrap_servers: str, name: str, admin_dsn: str) -> None:
        """``database`` is a superuser's DSN; ``name`` is unique on both servers and begins topics and slots."""
        self._database = database
        self._connector_dsn = connector_dsn
        self._bootstrap_servers = bootstrap_servers
        self._name = name
        self._admin_dsn = admin_dsn

    def live(self, mode: Mode, fail_at: int) -> Life:
        """One life in which the call with that number fails."""
        name = f"{self._name}_{mode.value}_{fail_at}"
        world = self._world(name)
        world.create_topics(partitions=PARTITIONS)
        calls = FailingCalls(fail_at, mode, self._admin_dsn)
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute("truncate outrider.dispatch_outbox, outrider.delivery_attempt")
            try:
                with calls.installed():
                    faults = self._live(world, connection)
            finally:
                _drop_slot(connection, name)
                _delete_topics(self._bootstrap_servers, world)
        return Life(mode, fail_at, calls.failed, calls.count, faults)

    def _world(self, name: str) -> ConnectorWorld:
        return world_of(
            {
                "postgres_dsn": self._connector_dsn,
                "kafka_bootstrap_servers": self._bootstrap_servers,
                "topic_prefix": name,
                "topic_replication_factor": 1,
                "topic_min_insync_replicas": 1,
                "connector_slot": name,
                "connector_transaction_rows": TRANSACTION_ROWS,
            }
        )

    def _live(self, world: ConnectorWorld, connection: psycopg.Connection) -> list[str]:
        known = Known()
        judge = OutboxJudge(world)

        def commit(tag: str, rows: int) -> None:
            known.committed |= write_dispatches(connection, f"{tag}{world.settings.connector_slot}", rows)

        def start() -> AbstractContextManager[Connector]:
            return world.connector(backoff_max_seconds=FAST_BACKOFF_SECONDS)

        try:
            commit("before", 4)
            with start() as connector:
                _streams(connector)
                judge.wait_until_published(connection, lambda: _runs(connector))
                commit("small", 1)
                with connection.transaction(force_rollback=True):
                    known.rolled_back |= write_dispatches(
                        connection, f"never{world.settings.connector_slot}", TRANSACTION_ROWS
                    )
                commit("large", LARGE_ROWS)
                judge.wait_until_published(connection, lambda: _runs(connector))
            commit("between", 1)
            with start() as connector:
                _streams(connector)
                commit("after", 1)
                judge.wait_until_published(connection, lambda: _runs(connector))
        except Exception as error:
            return [f"the connector did not recover: {type(error).__name__}: {error}"]
        return judge.verdict(connection, known).faults


def lives(
    bench: Bench, modes: Sequence[Mode], *, first: int = 1, step: int = 1, tell: Callable[[Life], None] = lambda _: None
) -> list[Life]:
    """In each mode, one life after the other until one passes untouched, which must be there."""
    lived: list[Life] = []
    for mode in modes:
        for fail_at in range(first, LIVES_MAX, step):
            life = bench.live(mode, fail_at)
            lived.append(life)
            tell(life)
            if life.failed_call is None:
                break
    return lived


def _streams(connector: Connector) -> None:
    wait_until(
        lambda: connector.status.state == "streaming" or not _runs(connector),
        lambda: f"the connector streams ({connector.status})",
    )


def _runs(connector: Connector) -> bool:
    return connector.status.state != "stopped"


def _drop_slot(connection: psycopg.Connection, slot: str) -> None:
    found = "from pg_replication_slots where slot_name = %s"
    wait_until(
        lambda: connection.execute(f"select 1 {found} and active", [slot]).fetchone() is None,
        lambda: f"slot {slot} becomes free",
    )
    connection.execute(f"select pg_drop_replication_slot(slot_name) {found}", [slot])


def _delete_topics(bootstrap_servers: str, world: ConnectorWorld) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    topics = [
        name for name in admin.list_topics(timeout=ADMIN_SECONDS).topics if name.startswith(world.settings.topic_prefix)
    ]
    for deletion in admin.delete_topics(topics, operation_timeout=ADMIN_SECONDS).values():
        deletion.result(ADMIN_SECONDS)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    # The connector says a lot about failures that are wanted here.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="outrider-proof-") as folder,
        EmbeddedStack(Path(folder), fast=True, is_brief=True) as stack,
    ):
        migrate_up(stack.postgres_dsn)
        role, password = create_login_roles(stack.postgres_dsn)["connector"]
        bench = Bench(
            database=stack.postgres_dsn,
            connector_dsn=make_conninfo(stack.postgres_dsn, user=role, password=password),
            bootstrap_servers=stack.bootstrap_servers,
            name="proof",
            admin_dsn=stack.postgres_dsn,
        )

        def tell(life: Life) -> None:
            progress(f"{life.mode.value} {life.fail_at}: {life.failed_call or 'untouched'} {life.faults or ''}")

        lived = lives(bench, [Mode(mode) for mode in options.modes], first=options.first, step=options.step, tell=tell)
    faults = [
        f"{life.mode.value} {life.fail_at} ({life.failed_call}): {fault}" for life in lived for fault in life.faults
    ]
    figures = {
        "seconds": round(time.monotonic() - begun, 1),
        "lives": len(lived),
        "calls_failed": sum(life.failed_call is not None for life in lived),
        "untouched_after": {life.mode.value: life.calls for life in lived if life.failed_call is None},
        "failed_by_call": _by_call(lived),
    }
    return finish("connector-calls", figures, faults)


def _by_call(lived: Sequence[Life]) -> dict[str, int]:
    """How often each call failed, all modes together."""
    count: dict[str, int] = {}
    for life in lived:
        if life.failed_call is not None:
            count[life.failed_call] = count.get(life.failed_call, 0) + 1
    return dict(sorted(count.items()))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make prove NAME=connector-calls ARGS=...", description=__doc__)
    modes = [mode.value for mode in Mode]
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes, help="how calls fail; all by default")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="number of the first call to fail")
    parser.add_argument("--step", type=int, default=1, metavar="N", help="fail every Nth call only")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
