"""The report's rarer findings, each brought about over the real pipeline: its name, the delivery it tells, and what mends it;
and a report that meets a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from tests.fixtures.components import StartComponent
from tests.support.delivery_world import World, opened, wait_until
from tests.support.ledger_rows import connect, scalar
from tests.support.program import Outrider
from tests.support.reports import careless_slot, ids_of

REPORT = ("reconcile", "report", "--settle-seconds", "30")

RECORDED_ATTEMPT = """
insert into outrider.delivery_attempt (delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq,
                                       worker_id, result, outcome, ambiguous, payload_sha256, started_at, duration_seconds)
select delivery_id, event_id, event_type, destination_id, attempt + 1, dispatch_seq,
       worker_id, 'late', outcome, ambiguous, payload_sha256, started_at, duration_seconds
from outrider.delivery_attempt where delivery_id = %s
"""
# At the offset behind the last message there is the marker of its transaction.
FORGED_RECORD = """
insert into outrider_audit.record
select (jsonb_populate_record(r, jsonb_build_object('log_offset', l.last + 1, 'chain_seq', r.chain_seq + 1000))).*
from outrider_audit.record r
cross join lateral (
  select max(n.log_offset) as last from outrider_audit.record n where n.topic = r.topic and n.partition = r.partition
) l
where r.delivery_id = %s and r.attempt is null
returning topic || '/' || partition || '/' || log_offset
"""


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("a")
        yield world


def forget(database: str, table: str, delivery_id: str) -> None:
    """Delete rows past every constraint, as a restore, or somebody with too many rights."""
    with connect(database) as admin:
        admin.execute("set session_replication_role = replica")
        admin.execute(f"delete from outrider.{table} where delivery_id = %s", (delivery_id,))  # type: ignore[arg-type]


def publish_again(world: World, bootstrap_servers: str, topic: str, delivery_id: str) -> None:
    (message,) = [m for m in world.records(topic) if dict(m.headers())["delivery_id"] == delivery_id.encode()]
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    producer.produce(topic, key=message.key(), value=message.value(), headers=message.headers())
    assert producer.flush(30) == 0


def test_each_finding_tells_its_delivery_and_what_mends_it(
    world: World,
    component: StartComponent,
    outrider: Outrider,
    *,
    database: str,
    bootstrap_servers: str,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    attempts = f"{topic_prefix}.attempts"
    started = [component(name) for name in ("connector", "worker")]
    component("audit")
    names = ("late", "forged", "twice", "rebuilt")
    ids = {name: world.admit(name, "a")[0] for name in names}
    wait_until(lambda: world.states() == {"succeeded": len(ids)}, "all is delivered")
    wait_until(
        lambda: scalar(world.ledger, "select count(*) from outrider_audit.record") == 2 * len(ids),
        "all is in the audit",
    )
    later = world.ledger.execute(
        "select delivery_id from outrider.admit('later', 't', '', destinations => array['a'], "
        "deliver_at => now() + interval '1 day')"
    ).fetchone()
    assert later is not None

    for process in started:
        assert process.terminate(30) == 0

    # No differences: rows of the attempt log that a rebuild does not bring back, and what a receiver has before the ledger
    # knows, since it may have taken an ambiguous attempt.
    for table in ("delivery_attempt", "delivery"):
        forget(database, table, ids["rebuilt"])
    assert outrider("replay", "rebuild", "--out", str(tmp_path / "plan")).exit_code == 0
    assert outrider("replay", "run", str(tmp_path / "plan"), "--reason", "restored").exit_code == 0
    theirs = tmp_path / "theirs"
    theirs.write_text("\n".join([*ids.values(), later[0]]))
    exact = outrider(*REPORT, "--json", "--destination", "a", "--receiver", str(theirs))
    assert (exact.exit_code, exact.json["in_flight"]) == (0, {"receiver_ahead": 1, "attempt_rebuilt": 1})
    assert ids_of(exact.json, "receiver_ahead") == [later[0]]
    assert ids_of(exact.json, "attempt_rebuilt") == [ids["rebuilt"]]

    # These are differences.
    ids["untried"], ids["undispatched"] = (world.admit(name, "a")[0] for name in ("untried", "undispatched"))
    for name in ("untried", "undispatched"):
        forget(database, "dispatch_outbox", ids[name])
    world.ledger.execute(
        "update outrider.delivery set state = 'succeeded', settled_at = now(), lost_after = null where delivery_id = %s",
        (ids["untried"],),
    )
    world.ledger.execute(RECORDED_ATTEMPT, (ids["late"],))
    publish_again(world, bootstrap_servers, attempts, ids["twice"])
    forged_at = scalar(world.ledger, FORGED_RECORD, ids["forged"])
    with careless_slot(database):
        different = outrider(*REPORT, "--json", "--repair", "--reason", "r", "--yes")
    report = different.json
    told = {
        "attempt_not_in_topic": ids["late"],
        "no_dispatch": ids["undispatched"],
        "no_attempt": ids["untried"],
        "only_in_audit": ids["forged"],
        "duplicate_attempt": ids["twice"],
    }
    assert different.exit_code == 1
    assert report["differences"] == dict.fromkeys(told, 1)
    assert {kind: ids_of(report, kind) for kind in told} == {kind: [found] for kind, found in told.items()}
    findings = {f["kind"]: f for f in report["findings"]}
    assert {f["destination_id"] for f in findings.values()} == {"a"}
    assert findings["attempt_not_in_topic"]["attempt"] == 2
    assert findings["no_dispatch"]["dispatch_seq"] == 1
    assert findings["only_in_audit"]["place"] == forged_at
    assert (findings["duplicate_attempt"]["attempt"], findings["duplicate_attempt"]["detail"]) == (1, "2 messages")
    assert report["in_flight"] == {"attempt_rebuilt": 1}

    # What can be mended is mended by what the report names.
    assert "1 no_dispatch: can be dispatched again" in different.stderr
    assert "attempt_not_in_topic: outrider connector reset" in different.stderr
    assert world.delivery(ids["undispatched"])["dispatch_seq"] == 2
    assert outrider("connector", "reset", "--reason", "r", "--yes").exit_code == 0
    plan = outrider("connector", "plan", "--count", "--json").json
    missing = {table["table"]: table["missing"] for table in plan["counts"]}
    assert (plan["does"], missing["outrider.delivery_attempt"]) == ("catch up", 1)


def test_a_lock_is_not_waited_for_without_end(world: World, outrider: Outrider, database: str) -> None:
    with psycopg.connect(database, application_name="somebody's psql") as session:
        session.execute("lock table outrider.delivery")
        met = outrider(*REPORT, "--lock-seconds", "0.2")
        assert (met.exit_code, met.stderr.count("\n")) == (1, 1)
        assert f"process {session.info.backend_pid} ({session.info.user}, somebody's psql) has locked" in met.stderr
        assert "outrider.delivery." in met.stderr
        assert f"pg_terminate_backend({session.info.backend_pid})" in met.stderr
        assert met.stdout == ""
        session.rollback()
        assert "no difference" in outrider(*REPORT, "--lock-seconds", "0.2").stdout
        # Who waits for the lock is in front of those that come later.
        session.execute("select from outrider.delivery")
        with psycopg.connect(database, application_name="queued") as queued, ThreadPoolExecutor(1) as pool:
            pid = queued.info.backend_pid
            locking = pool.submit(queued.execute, "lock table outrider.delivery")
            wait_until(lambda: scalar(world.ledger, "select count(*) from pg_locks where not granted"), "it queues")
            met = outrider(*REPORT, "--lock-seconds", "0.2")
            session.rollback()
            locking.result(30)
        assert met.exit_code == 1
        assert f"process {pid} ({session.info.user}, queued) waits to lock outrider.delivery" in met.stderr
