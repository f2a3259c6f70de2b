"""A run that is paused, cancelled, interrupted or killed: steered from elsewhere, and nothing twice or left out."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline.ledger import runs
from pipeline.replay import topic_scan, work
from tests.support.delivery_world import World, opened, wait_until
from tests.support.program import Outrider
from tests.support.replay_world import (
    admitted,
    dispatches,
    planned,
    program_process,
    ran,
    report,
    settle,
    status,
)


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        yield world


@pytest.fixture
def settings(settings_values: dict[str, object], role_dsns: dict[str, str]) -> dict[str, object]:
    return {**settings_values, "postgres_dsn": role_dsns["operator"]}


@contextmanager
def driven(settings: dict[str, object], log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = program_process(settings, log, "replay", *arguments, "--reason", "test")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_of(world: World, process: subprocess.Popen[bytes] | None = None) -> str:
    """The newest run's id, as soon as there is one."""

    def found() -> list[tuple[object]]:
        return world.ledger.execute(
            "select run_id from outrider.run where kind = 'replay' and finished_at is null order by started_at desc"
        ).fetchall()

    wait_until(lambda: found() or (process is not None and process.poll() is not None), "the run is on record")
    return str(found()[0][0])


def replayed(world: World, run_id: str) -> int:
    row = world.ledger.execute(
        "select count(*) from outrider.replay_item where run_id = %s and verdict = 'replayed'", (run_id,)
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_killed_run_goes_on_where_it_ended(
    outrider: Outrider, world: World, settings: dict[str, object], tmp_path: Path, bootstrap_servers: str
) -> None:
    ids = admitted(world, 40)
    planned(outrider, tmp_path / "plan", "--topic", rate="15")
    with driven(settings, tmp_path / "log", "run", str(tmp_path / "plan")) as process:
        run_id = run_of(world, process)
        wait_until(lambda: replayed(world, run_id) >= 5, "some are replayed")
        busy = outrider("replay", "resume", run_id, "--reason", "impatient")
        assert "in the process that drives it" in busy.stdout
        process.send_signal(signal.SIGKILL)
        process.wait()
    at_the_kill = status(outrider, run_id)
    assert at_the_kill["counts"]["replayed"] == replayed(world, run_id) < 40
    outbox = world.ledger.execute("select count(*) from outrider.dispatch_outbox where reason = 'replay'").fetchone()
    assert outbox == (replayed(world, run_id),)
    group = f"{settings['topic_prefix']}.replay.{run_id}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    committed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    assert 40 <= sum(tp.offset for tp in committed.topic_partitions) <= 41  # with the transaction's marker

    with driven(settings, tmp_path / "log2", "resume", run_id) as process:
        wait_until(lambda: replayed(world, run_id) > at_the_kill["counts"]["replayed"], "it goes on")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1
    assert f"outrider replay resume {run_id}" in (tmp_path / "log2").read_text()
    assert status(outrider, run_id)["state"].startswith("left")

    done = outrider("replay", "resume", run_id, "--reason", "go on", "--json")
    assert (done.json["outcome"], done.json["replayed"], done.json["waiting"]) == ("done", 40, 0)
    assert all(dispatches(world, delivery_id) == [(1, "admitted"), (2, "replay")] for delivery_id in ids)
    assert "is over" in outrider("replay", "pause", run_id, "--reason", "late").stderr
    kinds = [run["kind"] for run in outrider("runs", "list", "--json").json["runs"]]
    assert kinds == ["replay"]


def test_a_selection_that_breaks_off_at_every_batch_neither_skips_nor_repeats(
    outrider: Outrider, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = admitted(world, 9)
    planned(outrider, tmp_path / "plan", "--topic")
    monkeypatch.setattr(topic_scan, "BATCH", 3)
    calls = 0

    def cut_off(*arguments: Any) -> None:
        """Each process ends in the middle of its second transaction."""
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise psycopg.OperationalError("the connection is lost")
        runs.count_run(*arguments)

    monkeypatch.setattr(work, "count_run", cut_off)
    done = outrider("replay", "run", str(tmp_path / "plan"), "--reason", "test", "--json")
    run_id = run_of(world)
    tries = 1
    while done.exit_code:
        assert f"outrider replay resume {run_id} goes on" in done.stderr
        done = outrider("replay", "resume", run_id, "--reason", "test", "--json")
        tries += 1
    assert tries > 2
    assert (done.json["messages"], done.json["replayed"], done.json["waiting"]) == (9, 9, 0)
    assert all(dispatches(world, delivery_id) == [(1, "admitted"), (2, "replay")] for delivery_id in ids)


def test_pause_resume_and_cancel_from_another_terminal(
    outrider: Outrider, world: World, settings: dict[str, object], tmp_path: Path
) -> None:
    admitted(world, 60)
    planned(outrider, tmp_path / "plan", "--topic", rate="15")
    with driven(settings, tmp_path / "log", "run", str(tmp_path / "plan")) as process:
        run_id = run_of(world, process)
        wait_until(lambda: replayed(world, run_id) >= 3, "some are replayed")
        assert outrider("replay", "pause", run_id, "--reason", "look first").exit_code == 0
        wait_until(lambda: "paused" in (tmp_path / "log").read_text(), "the process says that it is paused")
        before = replayed(world, run_id)
        assert status(outrider, run_id)["state"] == "paused"
        assert "paused already" in outrider("replay", "pause", run_id, "--reason", "again").stdout
        assert replayed(world, run_id) == before
        assert "goes on" in outrider("replay", "resume", run_id, "--reason", "looked").stdout
        wait_until(lambda: replayed(world, run_id) > before, "it goes on")
        assert outrider("replay", "cancel", run_id, "--reason", "enough").exit_code == 0
        assert process.wait(30) == 1
    ended = status(outrider, run_id)
    assert (ended["state"], ended["counts"]["replayed"]) == ("cancelled", replayed(world, run_id))
    assert ended["counts"]["waiting"] == 60 - replayed(world, run_id) > 0
    left = [row for row in report(outrider, run_id).values() if row["result"] == "left"]
    assert len(left) == ended["counts"]["waiting"]
    acts = [run["kind"] for run in outrider("runs", "list", "--json").json["runs"]]
    assert acts == ["replay.cancel", "replay.resume", "replay.pause", "replay"]

    assert "forgotten 60 deliveries" in outrider("replay", "forget", run_id, "--reason", "read").stdout
    assert report(outrider, run_id) == {}

    # What nobody drives is ended by the cancel itself.
    planned(outrider, tmp_path / "plan2", "--topic", rate="15")
    with driven(settings, tmp_path / "log2", "run", str(tmp_path / "plan2")) as process:
        second = run_of(world, process)
        wait_until(lambda: replayed(world, second) >= 1, "the second run is at work")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert outrider("replay", "cancel", second, "--reason", "not again").exit_code == 0
    assert status(outrider, second)["state"] == "cancelled"


def test_two_runs_over_one_range_dispatch_nothing_twice_by_chance(
    outrider: Outrider, world: World, settings: dict[str, object], tmp_path: Path
) -> None:
    ids = admitted(world, 60)
    settle(world, ids, "succeeded", "success")
    for name in ("1", "2"):
        planned(outrider, tmp_path / name, "--topic", "--mode", "all", "--force", rate="30")
    with driven(settings, tmp_path / "log1", "run", str(tmp_path / "1")) as first:
        one = run_of(world, first)
        wait_until(
            lambda: world.ledger.execute("select from outrider.replay where phase = 'dispatch'").fetchall(),
            "the first has selected",
        )
        with driven(settings, tmp_path / "log2", "run", str(tmp_path / "2")) as second:
            assert (first.wait(60), second.wait(60)) == (0, 0)
    listed = [run["run_id"] for run in outrider("runs", "list", "--kind", "replay", "--json").json["runs"]]
    (two,) = (run_id for run_id in listed if run_id != one)
    claims = {run_id: report(outrider, run_id) for run_id in (one, two)}
    assert all(set(rows) == set(ids) for rows in claims.values())
    for delivery_id in ids:
        sequences = [n for n, reason in dispatches(world, delivery_id) if reason == "replay"]
        claimed = [rows[delivery_id]["dispatch_seq"] for rows in claims.values()]
        # Each dispatch is exactly one run's, and each run says truly which are its own.
        assert sorted(sequence for sequence in claimed if sequence is not None) == sequences
        whys = {row["why"] for rows in claims.values() if (row := rows[delivery_id])["result"] == "skipped"}
        assert whys <= {"gone_on"}


def test_ledger_and_dead_letters_as_sources(outrider: Outrider, world: World, tmp_path: Path) -> None:
    world.add_destination("beta")
    world.add_destination("gone", enabled=False)
    world.ledger.execute("update outrider.destination set enabled = true where destination_id = 'gone'")
    ids = admitted(world, 12)
    others = admitted(world, 5, "beta", "b")
    disabled = admitted(world, 2, "gone", "g")
    settle(world, ids[:4], "dead", "rejected")
    settle(world, others[:2], "dead", "server_error")
    listed = tmp_path / "ids"
    listed.write_text("\n".join([*ids[4:7], ids[4], others[0], "dlv_nobody"]))

    assert planned(outrider, tmp_path / "1", "--dead", "--outcome", "rejected")["counts"][0]["deliveries"] == 4
    assert ran(outrider, tmp_path / "1")["replayed"] == 4
    world.ledger.execute("update outrider.destination set enabled = false where destination_id = 'gone'")
    plan = planned(outrider, tmp_path / "2", "--ledger", "--ids-from", str(listed))
    assert (plan["id_list"]["ids"], plan["id_list"]["unknown"]) == (5, 1)
    assert ran(outrider, tmp_path / "2")["replayed"] == 3
    plan = planned(outrider, tmp_path / "3", "--ledger")
    assert {(c["destination_id"], c["verdict"]): c["deliveries"] for c in plan["counts"]} == {
        ("acme", "replay"): 12,
        ("beta", "replay"): 3,
        ("beta", "dead"): 2,
        ("gone", "replay"): 2,
    }
    done = ran(outrider, tmp_path / "3")
    assert (done["replayed"], done["skipped_dead"], done["skipped_destination_disabled"]) == (15, 2, 2)
    assert all(dispatches(world, delivery_id) == [(1, "admitted")] for delivery_id in disabled)


def test_a_range_that_retention_has_cut_is_told(
    outrider: Outrider, world: World, tmp_path: Path, bootstrap_servers: str
) -> None:
    ids = admitted(world, 10)
    (partition,) = {message.partition() for message in world.records(world.dispatch)}
    planned(outrider, tmp_path / "before", "--topic")
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for deletion in admin.delete_records([TopicPartition(world.dispatch, partition, 4)]).values():
        deletion.result(30)

    plan = planned(outrider, tmp_path / "after", "--topic", "--offsets", f"{partition}:0-")
    assert plan["read"]["removed"] == 4
    assert "has removed the first 4 offsets" in plan["ranges"][0]["note"]
    text = outrider("replay", "plan", "--topic", "--out", str(tmp_path / "text"))
    assert "retention has removed what lay before offset 4" in text.stdout
    # A plan from before: the run finds out, and says so.
    done = ran(outrider, tmp_path / "before")
    assert (done["replayed"], done["removed_by_retention"]) == (6, 4)
    assert {i for i in ids if len(dispatches(world, i)) == 1} == set(ids[:4])
