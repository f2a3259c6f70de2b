"""A replay over a range of the dispatch topic: what is counted is what is dispatched, once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.replay import selecting
from tests.support.damaged_records import NotText, batch, produce_batch
from tests.support.delivery_world import World, opened
from tests.support.program import Outrider, Result
from tests.support.replay_world import admitted, dispatches, planned, ran, report, settle


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        world.add_destination("zeta")
        yield world


def test_each_mode_takes_its_own_and_tells_why_the_others_stay(
    outrider: Outrider, world: World, tmp_path: Path
) -> None:
    ids = admitted(world, 10)
    succeeded, dead, cancelled, lost = ids[:3], ids[3:5], ids[5:6], ids[6:]
    settle(world, succeeded, "succeeded", "success")
    settle(world, dead, "dead", "rejected")
    settle(world, cancelled, "dead", "cancelled")
    world.publish_again()  # each message lies there twice, and is one delivery

    plan = planned(outrider, tmp_path / "missing", "--topic")
    assert plan["read"] == {"messages": 20, "broken": 0, "foreign": 0, "removed": 0}
    counts = {(c["state"], c["verdict"]): c["deliveries"] for c in plan["counts"]}
    assert counts == {
        ("enqueued", "replay"): 4,
        ("succeeded", "succeeded"): 3,
        ("dead", "dead"): 2,
        ("dead", "cancelled"): 1,
    }
    assert {row["delivery_id"] for row in plan["sample"]} == set(lost)

    done = ran(outrider, tmp_path / "missing")
    assert (done["outcome"], done["replayed"], done["skipped"], done["waiting"]) == ("done", 4, 6, 0)
    rows = report(outrider, done["run"])
    assert {i for i, row in rows.items() if row["result"] == "replayed"} == set(lost)
    assert {rows[i]["why"] for i in succeeded} == {"succeeded"}
    assert {rows[i]["why"] for i in dead} == {"dead"}
    assert {rows[i]["why"] for i in cancelled} == {"cancelled"}
    for delivery_id in lost:
        assert dispatches(world, delivery_id) == [(1, "admitted"), (2, "replay")]

    planned(outrider, tmp_path / "failed", "--topic", "--mode", "failed")
    assert ran(outrider, tmp_path / "failed")["replayed"] == 2
    planned(outrider, tmp_path / "all", "--topic", "--mode", "all", "--force", "--state", "succeeded")
    assert ran(outrider, tmp_path / "all")["replayed"] == 3
    assert world.states() == {"enqueued": 9, "dead": 1}


def test_a_plan_changes_nothing_and_says_what_is_wrong(outrider: Outrider, world: World, tmp_path: Path) -> None:
    admitted(world, 3)
    before = world.ledger.execute("select * from outrider.delivery order by 1").fetchall()
    planned(outrider, tmp_path / "plan", "--topic")
    assert world.ledger.execute("select * from outrider.delivery order by 1").fetchall() == before
    assert world.ledger.execute("select count(*) from outrider.run").fetchone() == (0,)

    def refused(*arguments: str) -> Result:
        return outrider("replay", "plan", "--out", str(tmp_path / "other"), *arguments)

    for arguments, said in (
        (("--topic", "--dead"), "exactly one of"),
        (("--topic", "--mode", "all"), "--force"),
        (("--topic", "--since", "yesterday"), "--since"),
        (("--ledger", "--last", "6h"), "--admitted-since"),
        (("--topic", "--offsets", "0:9-3"), "is empty"),
        (("--topic", "--offsets", "9:0-3"), "no partition 9"),
    ):
        done = refused(*arguments)
        assert done.exit_code in (1, 2), arguments
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert "there already" in outrider("replay", "plan", "--topic", "--out", str(tmp_path / "plan")).stderr
    edited = tmp_path / "edited"
    edited.write_text((tmp_path / "plan").read_text().replace('"missing"', '"all"'))
    assert "was changed after" in outrider("replay", "run", str(edited), "--reason", "x").stderr


def test_a_range_by_time_offsets_and_filters(outrider: Outrider, world: World, tmp_path: Path) -> None:
    early = admitted(world, 4)
    admitted(world, 5, "zeta", "z")
    listed = tmp_path / "ids"
    listed.write_text("\n".join([early[1], early[2], early[1], "dlv_nobody", ""]))

    plans = 0

    def count(*arguments: str) -> int:
        nonlocal plans
        plans += 1
        plan = planned(outrider, tmp_path / f"plan-{plans}", *arguments)
        return sum(c["deliveries"] for c in plan["counts"] if c["verdict"] == "replay")

    assert count("--ledger", "--destination", "zeta") == 5
    assert count("--ledger", "--event-type", "test.*") == 9
    assert count("--ledger", "--event-type", "test_*") == 0
    assert count("--ledger", "--admitted-until", "2020-01-01T00:00:00Z") == 0
    assert count("--ledger", "--admitted-since", "2020-01-01T00:00:00Z", "--state", "enqueued") == 9
    assert count("--ledger", "--outcome", "rejected") == 0
    assert count("--topic", "--until", "2020-01-01T00:00:00Z") == 0
    assert count("--topic", "--last", "1h", "--ids-from", str(listed)) == 2
    by_list = tmp_path / f"plan-{plans}"
    partitions = {message.partition() for message in world.records(world.dispatch) if message.key() == b"acme"}
    assert count("--topic", "--offsets", f"{partitions.pop()}:1-3", "--destination", "acme") == 2

    assert ran(outrider, by_list)["replayed"] == 2
    listed.write_text("dlv_other")
    assert "has changed" in outrider("replay", "run", str(by_list), "--reason", "x").stderr


def test_what_is_no_dispatch_goes_into_quarantine_once(
    outrider: Outrider, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bootstrap_servers: str
) -> None:
    monkeypatch.setattr(selecting, "PATIENCE_SECONDS", 0.0)
    admitted(world, 2)
    world.publish_rows([(0, "m", "dlv_nobody", 1, "acme", b"{}", "admitted")])
    world.producer.begin_transaction()
    world.producer.produce(world.dispatch, key=b"acme", value=b"?", headers={"delivery_id": "dlv_x"})
    world.producer.commit_transaction(30)
    # Neither a client nor Kafka can make text of this header's name.
    damaged = batch(*[(b"acme", b"?", [(NotText("x"), b"y")])] * 40)  # enough to make the reading line hot
    produce_batch(bootstrap_servers, world.dispatch, 0, damaged)
    plan = planned(outrider, tmp_path / "1", "--topic")
    assert (plan["read"]["messages"], plan["read"]["broken"], plan["read"]["foreign"]) == (44, 41, 1)
    assert world.records(world.quarantine) == []

    for name, replayed in (("1", 2), ("2", 2)):
        if name != "1":
            planned(outrider, tmp_path / name, "--topic")
        done = ran(outrider, tmp_path / name)
        assert (done["replayed"], done["quarantined"], done["messages"]) == (replayed, 42, 44)
    entries = [dict(message.headers() or ()) for message in world.records(world.quarantine)]
    assert len(entries) == len({entry["quarantine_origin"] for entry in entries}) == 42
    assert any(b"no such delivery" in entry["quarantine_reason"] for entry in entries)
