"""Sources in ``outrider run reconciler``: whatever wakes a pass, it finds what is due."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from pipeline.core.ids import delivery_identity
from pipeline.ledger.api_keys import Scope
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.api_world import api, caller, make_key
from tests.support.health import get
from tests.support.ledger_rows import connect, scalar, wait_until
from tests.support.program import Outrider, program
from tests.support.source_world import CLAIM, SOURCE_ID, add_assets, make_assets, make_topics, write_source

OPEN = "select count(*) from public.asset where announced_at is null"


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
        make_assets(connection, reconciler=str(login))
        yield connection


def wait_for_all(connection: psycopg.Connection, count: int) -> None:
    wait_until(lambda: scalar(connection, OPEN) == 0, "nothing is due")
    # A second call may have made a second pass begin, which would share its run with the next call.
    wait_until(lambda: scalar(connection, "select count(*) from outrider.source_wakeup") == 0, "no call waits")
    assert scalar(connection, "select count(*) from outrider.event") == count


def passes(connection: psycopg.Connection, woken_by: str, source_id: str = SOURCE_ID) -> int:
    """Those that have ended."""
    return int(
        scalar(
            connection,
            "select count(*) from outrider.run where kind = 'source.pass' and finished_at is not null and error is null "
            "and woken_by = %s and parameters ->> 'source' = %s",
            woken_by,
            source_id,
        )
    )


def failures(health_port: int, source_id: str) -> float:
    """In a row, as the metric says it; 0 where it says nothing."""
    found = re.search(rf'outrider_source_failures{{source="{source_id}"}} (\S+)', get(health_port, "/metrics")[1])
    return float(found[1]) if found else 0.0


async def test_every_wake_up_makes_a_pass_begin(
    *,
    component: StartComponent,
    connection: psycopg.Connection,
    database: str,
    role_dsns: dict[str, str],
    tmp_path: Path,
    outrider: Outrider,
    bootstrap_servers: str,
    topic_prefix: str,
) -> None:
    write_source(tmp_path, cron="0 0 1 1 *", time_zone="Europe/Berlin", page_rows=12, pass_rows=12)
    write_source(tmp_path, "ticking", interval_seconds=0.2)
    write_source(tmp_path, "stuck", interval_seconds=0.2, claim=CLAIM.replace("limit %", "limit 1 / 0 + %"))
    make_topics(bootstrap_servers, topic_prefix)
    (health_port,) = free_ports(1)
    reconciler = component("reconciler", sources_directory=tmp_path, health_port=health_port)
    wait_until(lambda: scalar(connection, "select count(*) from outrider.source") == 3, "the sources are read")
    entry = outrider("source", "set", SOURCE_ID, "--mode", "live", "--reason", "test", "--json").json
    assert entry["modes"] == ["live"] * 4

    # HTTP, twice: the second is harmless.
    add_assets(connection, 1, 10)
    async with api(role_dsns["api"]) as url, caller(url, make_key(database, Scope.READ, Scope.WAKE)) as client:
        replies = [await client.ask("POST", f"/v1/wakeups/{SOURCE_ID}") for _ in range(2)]
        assert [(reply.status, reply.body["source"]) for reply in replies] == [(202, SOURCE_ID)] * 2
        assert (await client.ask("POST", "/v1/wakeups/nothing")).problem == "not-found"
        assert (await client.ask("POST", "/v1/events")).problem == "forbidden"
        run_id = replies[0].body["run_id"]
    wait_for_all(connection, 10)
    finished = (
        "select woken_by || (counts ->> 'admitted') from outrider.run where run_id = %s and finished_at is not null"
    )
    wait_until(lambda: connection.execute(finished, (run_id,)).fetchone() == ("http10",), "the run has ended")

    # NOTIFY, by a trigger's transaction as well as by hand. What a pass's budget leaves over the next one does at once.
    add_assets(connection, 11, 10)
    connection.execute("select pg_notify('outrider_source', %s)", (SOURCE_ID,))
    wait_for_all(connection, 20)
    wait_until(lambda: passes(connection, "notify") == 1, "the run has ended")

    # Kafka: what names no source, or is no text, changes nothing.
    add_assets(connection, 21, 10)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for key in (b"nothing", b"\xff\x00", None, SOURCE_ID.encode(), SOURCE_ID.encode()):
        producer.produce(f"{topic_prefix}.wakeups", key=key, value=b"due: everything")
    assert producer.flush(30) == 0
    wait_for_all(connection, 30)
    wait_until(lambda: passes(connection, "kafka") >= 1, "the run has ended")

    add_assets(connection, 31, 25)
    connection.execute("select pg_notify('outrider_source', %s)", (SOURCE_ID,))
    wait_for_all(connection, 55)
    wait_until(lambda: passes(connection, "backlog") >= 2, "the budget was used up twice")

    # A pass that fails is tried again by itself.
    login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
    connection.execute(f"revoke update on public.asset from {login}".encode())
    connection.execute("select pg_notify('outrider_source', %s)", (SOURCE_ID,))
    failed = "select count(*) from outrider.run where starts_with(error, 'InsufficientPrivilege')"
    wait_until(lambda: scalar(connection, failed) >= 1, "the run has the error")
    connection.execute(f"grant update on public.asset to {login}".encode())
    wait_until(lambda: passes(connection, "retry") == 1, "it is tried again")

    # Cron: three years of ticks were missed, and are one.
    add_assets(connection, 56, 10)
    connection.execute("update outrider.source set cron_at = now() - interval '3 years'")
    wait_for_all(connection, 65)
    wait_until(lambda: passes(connection, "cron") == 1, "the run has ended")

    # A source whose claim can do nothing holds up no other.
    outrider("source", "set", "stuck", "--mode", "live", "--reason", "test")
    wait_until(lambda: failures(health_port, "stuck") >= 1, "it has failed")

    # The interval, of the other source.
    add_assets(connection, 66, 10)
    outrider("source", "set", "ticking", "--mode", "live", "--reason", "test")
    wait_for_all(connection, 75)
    wait_until(lambda: passes(connection, "interval", "ticking") >= 2, "it ticks")
    assert passes(connection, "cron") == 1

    # Disabled, neither its clock nor a call makes it claim anything; enabled, it goes on.
    outrider("source", "set", "ticking", "--disable", "--reason", "test")
    add_assets(connection, 76, 10)
    connection.execute("select pg_notify('outrider_source', 'ticking')")
    wait_until(lambda: passes(connection, "notify", "ticking") == 1, "the call is answered")
    assert scalar(connection, OPEN) == 10
    outrider("source", "set", "ticking", "--enable", "--reason", "test")
    wait_for_all(connection, 85)
    assert scalar(connection, "select count(*) from outrider.run where kind = 'source.set'") == 5
    assert failures(health_port, "ticking") == 0
    assert failures(health_port, "stuck") >= 1

    # Invariants 1 to 3, whatever woke the pass: one identity, its dispatch in the same commit, a time to be looked at.
    deliveries = connection.execute("select event_id, delivery_id from outrider.delivery").fetchall()
    assert sorted(deliveries) == sorted((f"asset-{n}", delivery_identity(f"asset-{n}", "acme")) for n in range(1, 86))
    unseen = (
        "select count(*) from outrider.delivery d where coalesce(d.next_attempt_at, d.lost_after) is null or (d.dispatch_seq > 0) "
        "<> exists (select from outrider.dispatch_outbox o where o.delivery_id = d.delivery_id and o.dispatch_seq = d.dispatch_seq)"
    )
    assert scalar(connection, unseen) == 0

    for line in (
        'outrider_source_passes_total{result="done",source="assets",woken_by="http"} ',
        'outrider_source_rows_total{result="admitted",source="assets"} 65.0',
        'outrider_source_oldest_due_seconds{mode="live",source="ticking"} 0.0',
        'outrider_source_claim_to_commit_seconds_count{source="ticking"} ',
        'outrider_source_pass_seconds_count{source="ticking"} ',
        "outrider_source_unknown_wakeups_total 2.0",
    ):
        wait_until(lambda line=line: line in get(health_port, "/metrics")[1], line)  # type: ignore[misc]
    assert reconciler.terminate(20) == 0


def test_the_command_passes_under_the_operators_name(
    *,
    connection: psycopg.Connection,
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_source(tmp_path)
    values = {**settings_values, "sources_directory": tmp_path}
    as_operator = program(monkeypatch, capsys, **{**values, "postgres_dsn": role_dsns["operator"]})
    as_reconciler = program(monkeypatch, capsys, **{**values, "postgres_dsn": role_dsns["reconciler"]})
    add_assets(connection, 1, 120)

    assert as_reconciler("source", "check").exit_code == 0
    assert as_reconciler("source", "check", "--on-database").exit_code == 0
    write_source(
        tmp_path, "forgetful", claim=CLAIM.replace("<> all (%(refused)s)", "<> all (%(refused)s || '{x}') or true")
    )
    checked = as_reconciler("source", "check", "--on-database", "--json")
    assert checked.exit_code == 1
    assert [one["wrong"] is None for one in checked.json] == [True, False]
    assert "although %(refused)s names it" in checked.json[1]["wrong"]
    assert scalar(connection, OPEN) == 120

    refused = as_reconciler("reconcile", "run", SOURCE_ID)
    assert refused.exit_code == 1
    assert "no shard of it is live" in refused.stderr
    assert scalar(connection, OPEN) == 120

    assert as_operator("source", "set", SOURCE_ID, "--mode", "live", "--reason", "r").exit_code == 0
    done = as_reconciler("reconcile", "run", SOURCE_ID, "--operator", "ada", "--reason", "mended", "--json")
    assert (done.exit_code, done.json["admitted"], done.json["pages"]) == (0, 120, 3)
    run = as_operator("runs", "show", done.json["run_id"], "--json").json
    assert (run["operator"], run["reason"], run["woken_by"]) == ("ada", "mended", "operator")

    listed = as_operator("source", "list")
    assert SOURCE_ID in listed.stdout
    shown = as_operator("source", "show", SOURCE_ID, "--json").json
    assert [one["counts"]["admitted"] for one in shown["passes"]] == [120, 0]

    # In shadow mode the command looks, and does nothing.
    assert as_operator("source", "set", SOURCE_ID, "--mode", "shadow", "--reason", "r").exit_code == 0
    add_assets(connection, 121, 7)
    looked = as_reconciler("reconcile", "run", SOURCE_ID, "--json")
    assert (looked.exit_code, looked.json["admitted"], looked.json["look"]["examined"]) == (0, 0, 7)
    assert scalar(connection, OPEN) == 7

    # An operator's login admits nothing, and neither does a worker's.
    assert "permission denied" in as_operator("reconcile", "run", SOURCE_ID).stderr
    assert "nothing" in as_reconciler("reconcile", "run", "nothing").stderr
    assert as_operator("source", "set", SOURCE_ID, "--mode", "live", "--shard", "4", "--reason", "r").exit_code == 1
    assert as_operator("source", "set", SOURCE_ID, "--reason", "r").exit_code == 2
    assert "no source" in as_operator("source", "show", "nothing").stderr


def test_a_source_that_is_wrong_is_one_line_at_the_start(
    component: StartComponent, database: str, tmp_path: Path
) -> None:
    path = write_source(tmp_path, interval_seconds=0)
    reconciler = component("reconciler", sources_directory=tmp_path)
    wait_until(lambda: not reconciler.is_running, "it ends")
    assert reconciler.exit_status == 1
    assert str(path) in reconciler.log_tail(5)
    assert "interval_seconds" in reconciler.log_tail(5)
    assert "Traceback" not in reconciler.log_tail(50)
