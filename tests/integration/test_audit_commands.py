"""The audit's commands over the real pipeline: a delivery's story, the export, and what verify says of it all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fixtures.components import StartComponent
from tests.support.delivery_world import Reply, World, opened, wait_until
from tests.support.ledger_rows import connect, scalar
from tests.support.program import Outrider


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def chapters(story: Any) -> list[tuple[str, Any]]:
    """What happened, with the number or the word that tells it from others."""
    return [
        (
            chapter["what"],
            chapter["facts"].get("attempt") or chapter["facts"].get("kind") or chapter["facts"].get("dispatch_seq"),
        )
        for chapter in story["chapters"]
    ]


def test_story_export_and_verification(
    world: World, component: StartComponent, outrider: Outrider, database: str, tmp_path: Path
) -> None:
    world.add_destination("a", retry_max_attempts=1)
    world.receiver.reply = lambda received: Reply(500 if len(world.receiver.received) == 1 else 200)
    component("connector")
    component("worker")
    component("audit")
    delivery_id = world.admit("e1", "a", payload=b"bytes")[0]
    wait_until(lambda: world.states() == {"dead": 1}, "it is given up")
    assert outrider("delivery", "retry", delivery_id, "--reason", "mended", "--operator", "kim").exit_code == 0
    wait_until(lambda: world.states() == {"succeeded": 1}, "it is delivered")
    wait_until(lambda: scalar(world.ledger, "select count(*) from outrider_audit.record") == 4, "all is recorded")

    # One delivery's story, in order.
    shown = outrider("audit", "show", delivery_id, "--json")
    assert shown.exit_code == 0, shown.stdout
    story = shown.json
    assert chapters(story) == [
        ("admitted", None),
        ("dispatched", 1),
        ("attempted", 1),
        ("operator", "delivery.retry"),
        ("dispatched", 2),
        ("attempted", 2),
        ("succeeded", None),
    ]
    admitted, first, failed, act, second, succeeded, _ = (chapter["facts"] for chapter in story["chapters"])
    lsn = scalar(world.ledger, "select pg_wal_lsn_diff(pg_current_wal_lsn(), %s)", admitted["lsn"])
    assert lsn > 0
    assert int(admitted["transaction"]) % 2**32 == int(first["transaction"])
    assert (first["reason"], second["reason"]) == ("admitted", "replay")
    assert first["place"].startswith(world.dispatch)
    key_ids = [scalar(world.ledger, "select secret_id from outrider.destination_secret")]
    assert (failed["status"], failed["result"], failed["ambiguous"], failed["key_ids"]) == (500, "dead", True, key_ids)
    assert (succeeded["status"], succeeded["result"], succeeded["ambiguous"]) == (200, "succeeded", False)
    assert succeeded["worker_id"]
    assert (act["operator"], act["reason"], act["about"]) == ("kim", "mended", "this delivery")
    body = scalar(world.ledger, "select encode(sha256('bytes'), 'hex')")
    assert story["body_sha256"] == body
    assert {chapter["facts"].get("body_sha256", body) for chapter in story["chapters"]} == {body}
    text = outrider("audit", "show", delivery_id).stdout
    assert text.count(body) == 1
    assert "key_ids" in text

    # The same for other programs.
    lines, columns = tmp_path / "audit.ndjson", tmp_path / "audit.parquet"
    assert outrider("audit", "export", "--out", str(lines)).exit_code == 0
    assert outrider("audit", "export", "--format", "parquet", "--out", str(columns)).exit_code == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    table = pq.read_table(columns).to_pylist()
    assert sorted(row["hash"] for row in rows) == sorted(row["hash"].hex() for row in table)
    assert {row["delivery_id"] for row in table} == {delivery_id}
    (again,) = outrider("audit", "export", "--result", "succeeded", "--destination", "a").stdout.splitlines()
    assert json.loads(again)["status"] == 200
    assert outrider("audit", "export", "--until", "1h").stdout == ""
    assert sorted(tmp_path.glob("audit.*")) == [lines, columns]

    # Intact, also against what was noted outside.
    kept = tmp_path / "kept"
    kept.write_text(outrider("audit", "anchors").stdout)
    intact = outrider("audit", "verify", "--anchors", str(kept), "--json")
    assert intact.exit_code == 0
    assert (intact.json["is_intact"], intact.json["rows"]) == (True, 4)

    # A change that leaves ledger and hashes alone contradicts both.
    with connect(database) as admin:
        admin.execute("set session_replication_role = replica")
        admin.execute("update outrider_audit.record set status = 200, outcome = 'success' where attempt = 1")
    changed = outrider("audit", "verify")
    assert changed.exit_code == 1
    assert f"{failed['place'].rpartition('/')[0].replace('/', ' partition ')}, link 1: changed" in changed.stderr
    contradicted = outrider("audit", "show", delivery_id, "--json")
    assert contradicted.exit_code == 1
    assert contradicted.json["contradictions"] == ["attempt 1: the ledger and the audit tell it differently"]

    # What is gone from the ledger, the audit still tells.
    with connect(database) as admin:
        admin.execute("set session_replication_role = replica")
        admin.execute("delete from outrider.delivery")
    told = outrider("audit", "show", delivery_id, "--json")
    assert told.exit_code == 1
    assert chapters(told.json) == [("dispatched", 1), ("attempted", 1), ("dispatched", 2), ("attempted", 2)]
    assert told.json["contradictions"] == ["the ledger does not know this delivery"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("show", "dlv_nobody"), 1, "neither the ledger nor the audit knows"),
        (("verify", "--topic", "nothing"), 1, "nothing is recorded of topic nothing"),
        (("verify", "--anchors", "/nonexistent"), 1, "cannot be read"),
        (("export", "--format", "parquet"), 2, "needs --out FILE"),
        (("export", "--since", "yesterday"), 2, "--since"),
        (("export", "--out", "/nonexistent/x"), 1, "cannot be written"),
    ],
)
def test_what_cannot_be_is_one_line(outrider: Outrider, arguments: tuple[str, ...], exit_code: int, says: str) -> None:
    result = outrider("audit", *arguments)
    assert result.exit_code == exit_code
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_holds_no_anchors_is_refused(outrider: Outrider, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text('{"topic": "t"}\n')
    assert "line 1" in outrider("audit", "verify", "--anchors", str(kept)).stderr
    kept.write_text("")
    assert "holds no anchor" in outrider("audit", "verify", "--anchors", str(kept)).stderr
