"""The reconciliation report over the real pipeline: exact where all is well, and each way to differ by its name and ids."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.components import StartComponent
from tests.support.delivery_world import World, opened, wait_until
from tests.support.ledger_rows import connect, scalar
from tests.support.program import Outrider
from tests.support.reports import careless_slot, ids_of

SETTLE = ("--settle-seconds", "30")


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def produce(
    world: World, delivery_id: str, dispatch_seq: int, *, value: bytes, key: str = "a", message_id: str = ""
) -> None:
    """One message in a transaction, as the connector writes it."""
    row = world.ledger.execute("select outrider.message_identity(%s, %s)::text", (delivery_id, dispatch_seq)).fetchone()
    assert row is not None
    headers = {"id": message_id or row[0], "delivery_id": delivery_id, "dispatch_seq": str(dispatch_seq)}
    world.producer.begin_transaction()
    world.producer.produce(world.dispatch, key=key.encode(), value=value, headers=headers)
    world.producer.commit_transaction(30)


def test_a_healthy_pipeline_and_each_way_to_differ(
    world: World, component: StartComponent, outrider: Outrider, database: str, tmp_path: Path
) -> None:
    world.add_destination("a")
    world.add_destination("b")
    connector = component("connector")
    component("worker")
    audit = component("audit")
    a = [world.admit(f"e{n}", "a", payload=b"%d" % n)[0] for n in range(8)]
    b = [world.admit(f"f{n}", "b")[0] for n in range(3)]
    waiting = world.ledger.execute(
        "select delivery_id from outrider.admit('later', 't', '', destinations => array['b'], "
        "deliver_at => now() + interval '1 day')"
    ).fetchone()
    assert waiting is not None
    wait_until(lambda: world.states().get("succeeded") == 11, "all is delivered")

    # All is well.
    page, table = tmp_path / "report.html", tmp_path / "counts.csv"
    exact = outrider("reconcile", "report", "--json", "--html", str(page), "--csv", str(table), *SETTLE)
    assert exact.exit_code == 0, exact.stdout
    report = exact.json
    assert report["is_exact"]
    assert report["findings"] == []
    sums = {row["destination_id"]: row for row in report["counts"]}
    stages = ("admitted", "in_topic", "attempted", "succeeded", "dead", "waiting", "in_audit")
    assert [sums["a"][stage] for stage in stages] == [8, 8, 8, 8, 0, 0, 8]
    assert [sums["b"][stage] for stage in stages] == [4, 3, 3, 3, 0, 1, 3]
    assert sums["b"]["waiting_by_reason"] == {"scheduled": 1}
    assert {
        row["destination_id"]: row["waiting_scheduled"] for row in csv.DictReader(table.read_text().splitlines())
    } == {
        "a": "0",
        "b": "1",
    }
    assert "<svg" in page.read_text()
    assert "no difference" in page.read_text()
    assert "no difference" in outrider("reconcile", "report", *SETTLE).stdout
    assert [
        row["admitted"] for row in outrider("reconcile", "report", "--json", "--destination", "a").json["counts"]
    ] == [8]
    assert outrider("reconcile", "report", "--json", "--until", "1h", "--since", "2h").json["counts"] == []

    # A receiver's own list: one id too few, one too many, one twice.
    theirs = tmp_path / "theirs"
    theirs.write_text("\n".join([*a[1:], a[2], "dlv_unknown", '{"webhook-id": "dlv_other"}', ""]))
    against = outrider("reconcile", "report", "--json", "--destination", "a", "--receiver", str(theirs), *SETTLE)
    assert against.exit_code == 1
    assert ids_of(against.json, "not_at_receiver") == [a[0]]
    assert ids_of(against.json, "receiver_duplicate") == [a[2]]
    assert ids_of(against.json, "unknown_at_receiver") == ["dlv_other", "dlv_unknown"]

    # Repairing it: counted first, then sent again under the same id with the same bytes.
    repair = (
        "reconcile",
        "report",
        "--destination",
        "a",
        "--receiver",
        str(theirs),
        *SETTLE,
        "--repair",
        "--reason",
        "r",
    )
    assert "1 not_at_receiver: succeeded, so only with --force" in outrider(*repair).stdout
    assert "nothing was changed" in outrider(*repair, "--force").stdout
    before = len(world.receiver.received)
    assert "dispatched 1 of 1 again" in outrider(*repair, "--force", "--yes").stdout
    wait_until(lambda: len(world.receiver.received) == before + 1, "it is sent again")
    again = world.receiver.received[-1]
    assert (again.delivery_id, again.body) == (a[0], b"0")
    wait_until(lambda: world.states().get("succeeded") == 11, "it succeeds again")
    assert [run["kind"] for run in outrider("runs", "list", "--json").json["runs"]][:2] == [
        "delivery.retry",
        "reconcile.repair",
    ]

    # Topics hold what they should not.
    produce(world, a[1], 1, value=b"1")
    produce(world, a[2], 1, value=b"other bytes")
    produce(world, a[3], 1, value=b"3", message_id="not the derived one")
    produce(world, a[4], 1, value=b"4", key="b")
    produce(world, a[5], 7, value=b"5")
    produce(world, "dlv_of_nobody", 1, value=b"")
    world.producer.begin_transaction()
    world.producer.produce(world.dispatch, key=b"a", value=b"none of ours")
    world.producer.commit_transaction(30)
    wait_until(
        lambda: scalar(world.ledger, "select count(*) from outrider_audit.record where attempt is null") == 19, "audit"
    )
    report = outrider("reconcile", "report", "--json", *SETTLE).json
    assert a[1] in ids_of(report, "duplicate_dispatch")
    assert ids_of(report, "body_mismatch") == [a[2]]
    assert ids_of(report, "identity_mismatch") == sorted([a[3], a[4]])
    assert ids_of(report, "not_in_ledger") == sorted(["dlv_of_nobody", a[5]])
    assert report["differences"]["broken_message"] == 1
    assert not {"not_in_topic", "not_in_audit", "only_in_audit", "no_attempt"} & report["differences"].keys()

    # The audit lacks a row, and has another; the ledger lost a delivery.
    assert audit.terminate(30) == 0
    with connect(database) as admin:
        admin.execute("set session_replication_role = replica")
        admin.execute("delete from outrider_audit.record where delivery_id = %s and attempt is null", (b[0],))
        admin.execute(
            "update outrider_audit.record set delivery_id = 'x' where delivery_id = %s and attempt = 1", (b[1],)
        )
        admin.execute("delete from outrider.delivery_attempt where delivery_id = %s", (b[2],))
        admin.execute("delete from outrider.delivery where delivery_id = %s", (b[2],))
    report = outrider("reconcile", "report", "--json", *SETTLE).json
    assert ids_of(report, "not_in_audit") == [b[0]]
    assert ids_of(report, "audit_mismatch") == [b[1]]
    assert b[2] in ids_of(report, "not_in_ledger")
    assert ids_of(report, "attempt_not_in_ledger") == [b[2]]

    # What the connector has not passed is on its way; what it passed without publishing is missing.
    assert connector.terminate(30) == 0
    lost = world.admit("lost", "a")
    unsettled = outrider("reconcile", "report", "--json", "--settle-seconds", "0").json
    assert not unsettled["watermark"]["is_settled"]
    assert ids_of(unsettled, "not_published_yet") == lost
    assert "not_in_topic" not in unsettled["differences"]
    with careless_slot(database):
        settled = outrider("reconcile", "report", "--json", *SETTLE).json
        assert ids_of(settled, "not_in_topic") == lost
        mended = outrider("reconcile", "report", *SETTLE, "--repair", "--reason", "r", "--yes")
    assert "1 not_in_topic: can be dispatched again" in mended.stdout
    assert world.delivery(lost[0])["dispatch_seq"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--receiver", "x"), "--receiver needs --destination"),
        (("--yes",), "belong to --repair"),
        (("--repair",), "needs a --reason"),
        (("--repair", "--reason", "r", "--force"), "--force needs --receiver"),
        (("--since", "1h", "--until", "2h"), "--since must lie before --until"),
        (("--since", "yesterday"), "no moment"),
        (("--since", "365d", "--bucket", "1s"), "buckets"),
    ],
)
def test_wrong_usage_is_one_line(outrider: Outrider, arguments: tuple[str, ...], says: str) -> None:
    result = outrider("reconcile", "report", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
