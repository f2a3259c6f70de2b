"""The whole move from a cron scan to a source and back, under load and with kills: nothing lost, no identity changed."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.core.ids import delivery_identity
from pipeline.stack.child_process import ChildProcess, Command
from pipeline.stack.component import program_environment
from pipeline.stack.guard import Guard
from tests.fixtures.components import StartComponent
from tests.support.ledger_rows import connect, scalar, wait_until
from tests.support.program import Outrider
from tests.support.source_world import SOURCE_ID, add_assets, make_assets, write_source

ROOT = Path(__file__).resolve().parents[2]
SHARDS = range(4)
# add_assets gives publishers out in turn.
SHARD_OF = [
    int.from_bytes(hashlib.sha256(f"publisher-{number}".encode()).digest()[:4], "big") % len(SHARDS)
    for number in range(10)
]
MORE = 8
"""Events that a path must admit anew before the next step is taken."""


class Load:
    """Assets that become due all the while, of every shard."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.made = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def _run(self) -> None:
        with connect(self._database) as connection:
            while not self._ended.wait(0.05):
                # Due after they are committed: no look can see before that what was due already.
                due_at = scalar(connection, "select clock_timestamp() + interval '2 seconds'")
                add_assets(connection, self.made + 1, 10, processed_at=due_at)
                self.made += 10


@pytest.fixture
def logins(role_dsns: dict[str, str]) -> dict[str, str]:
    return {group: str(psycopg.conninfo.conninfo_to_dict(dsn)["user"]) for group, dsn in role_dsns.items()}


@pytest.fixture
def connection(database: str, logins: dict[str, str]) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        make_assets(connection, reconciler=logins["reconciler"])
        connection.execute(f"grant select, update on public.asset to {logins['application']}".encode())
        yield connection


@contextmanager
def cron_scan(dsn: str, directory: Path, guard: Guard) -> Iterator[ChildProcess]:
    command = Command(
        arguments=[sys.executable, "-m", "tests.support.cron_scan", dsn],
        environment=program_environment({}, inherit_settings=False),
        directory=ROOT,
        log=directory / "cron-scan.log",
    )
    process = ChildProcess("cron scan", command, on_start=guard.end)
    process.start()
    try:
        yield process
    finally:
        process.kill()


class Ledger:
    """What the steps look at."""

    def __init__(self, connection: psycopg.Connection, logins: dict[str, str]) -> None:
        self._connection = connection
        self._logins = logins

    def admitted(self, group: str, *shards: int) -> int:
        """Events that this path has admitted, in these shards."""
        return int(
            scalar(
                self._connection,
                "select count(*) from outrider.event e "
                "where e.admitted_by = %s and split_part(e.event_id, '-', 2)::bigint %% 10 = any (%s)",
                self._logins[group],
                [number for number in range(10) if SHARD_OF[number] in shards],
            )
        )

    def wait_for_more(self, group: str, *shards: int) -> None:
        goal = self.admitted(group, *shards) + MORE
        wait_until(lambda: self.admitted(group, *shards) >= goal, f"the {group} admits in {shards}", 60)

    def evidence(self) -> dict[str, set[Any]]:
        """Leases, attempts and outbox rows by their keys."""
        return {
            name: set(self._connection.execute(statement.encode()).fetchall())
            for name, statement in {
                "leases": "select delivery_id, attempt, lease_until from outrider.delivery where state = 'leased'",
                "attempts": "select attempt_id, delivery_id, attempt from outrider.delivery_attempt",
                "outbox": "select outbox_id, message_id, dispatch_seq from outrider.dispatch_outbox",
            }.items()
        }


def lease_some(connection: psycopg.Connection) -> None:
    """As workers would: some deliveries on their way, some with an attempt behind them."""
    connection.execute(
        "update outrider.delivery set state = 'leased', attempt = 1, lost_after = null, leased_at = now(), "
        "lease_until = now() + interval '1 hour', lease_owner = 'w' where delivery_id in "
        "(select delivery_id from outrider.delivery where state = 'enqueued' limit 20)"
    )
    connection.execute(
        "insert into outrider.delivery_attempt (delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, "
        "worker_id, result, outcome, ambiguous, payload_sha256, started_at, duration_seconds) "
        "select delivery_id, event_id, 'asset.processed', destination_id, 0, 1, 'w', 'retry', 'timeout', true, '', now(), 1 "
        "from outrider.delivery where state = 'leased'"
    )


def test_moving_over_and_back(
    *,
    component: StartComponent,
    connection: psycopg.Connection,
    database: str,
    role_dsns: dict[str, str],
    logins: dict[str, str],
    outrider: Outrider,
    guard: Guard,
    tmp_path: Path,
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    write_source(sources, interval_seconds=0.1, page_rows=5)
    ledger = Ledger(connection, logins)

    def switch(mode: str, *shards: int) -> None:
        only = [word for shard in shards for word in ("--shard", str(shard))]
        done = outrider("source", "set", SOURCE_ID, "--mode", mode, *only, "--reason", "moving over")
        assert done.exit_code == 0, done.stderr

    def compared() -> Any:
        return outrider("source", "shadow", SOURCE_ID, "--grace-seconds", "60", "--json")

    with Load(database) as load, cron_scan(role_dsns["application"], tmp_path, guard) as scan:
        ledger.wait_for_more("application", *SHARDS)
        reconcilers = [component("reconciler", sources_directory=sources) for _ in range(2)]
        wait_until(lambda: outrider("source", "show", SOURCE_ID).exit_code == 0, "the source is read", 60)

        # Shadow: both paths see the same, and nothing is done by the new one.
        switch("shadow")
        wait_until(lambda: compared().json["rows"]["both"] >= 5 * MORE, "both paths are compared", 60)
        report = compared()
        assert report.json["differences"] == []
        assert (report.exit_code, report.json["difference_rows"]) == (0, 0), report.json["rows"]
        assert ledger.admitted("reconciler", *SHARDS) == 0

        # Shard by shard, with a reconciler and the scan killed on the way.
        for shard in SHARDS:
            switch("live", shard)
            ledger.wait_for_more("reconciler", shard)
            (scan if shard == 1 else reconcilers[shard % 2]).kill()
            (scan if shard == 1 else reconcilers[shard % 2]).start()
        ledger.wait_for_more("reconciler", *SHARDS)
        assert scalar(connection, "select outrider.live_shards('assets')") == list(SHARDS)

        # Rollback: no claim after it, all evidence stays, and the scan finds the rest.
        lease_some(connection)
        evidence = ledger.evidence()
        assert all(evidence.values())
        for shard in reversed(SHARDS):
            switch("off", shard)
            admitted = ledger.admitted("reconciler", shard)
            ledger.wait_for_more("application", shard)
            assert ledger.admitted("reconciler", shard) == admitted
        after = ledger.evidence()
        assert all(rows <= after[name] for name, rows in evidence.items())

        load.end()
        wait_until(
            lambda: scalar(connection, "select count(*) from public.asset where announced_at is null") == 0,
            "no row is due",
            60,
        )
    made = load.made
    assert ledger.admitted("application", *SHARDS) + ledger.admitted("reconciler", *SHARDS) == made
    rows = connection.execute(
        "select e.event_id, convert_from(e.payload, 'UTF8'), d.delivery_id, d.destination_id "
        "from outrider.event e join outrider.delivery d using (event_id)"
    ).fetchall()
    ids = [f"asset-{number}" for number in range(1, made + 1)]
    assert sorted(rows) == sorted(
        (event_id, f'{{"asset":{event_id.removeprefix("asset-")}}}', delivery_identity(event_id, "acme"), "acme")
        for event_id in ids
    )
    assert scalar(connection, "select count(*) from outrider.source_refusal") == 0
    assert scalar(connection, "select count(*) from outrider.run where kind = 'source.set'") == 1 + 2 * len(SHARDS)
