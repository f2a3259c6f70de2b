"""``outrider offsets plan``: what it says before anything changes, and that nothing does."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.support.offsets_world import OffsetsWorld
from tests.support.program import Outrider, Result, program


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bootstrap_servers: str) -> Outrider:
    """Without a database: planning for another team's group needs none."""
    return program(monkeypatch, capsys, kafka_bootstrap_servers=bootstrap_servers, postgres_dsn="host=127.0.0.1 port=1")


@pytest.fixture
def world(bootstrap_servers: str, topic_prefix: str) -> OffsetsWorld:
    return OffsetsWorld(bootstrap_servers, topic_prefix)


@pytest.fixture
def plan(outrider: Outrider, world: OffsetsWorld, tmp_path: Path) -> Any:
    """Plan with these arguments; the plan as JSON. The group's offsets must be the same afterwards."""
    made = iter(range(1000))

    def run(*arguments: str) -> Any:
        path = tmp_path / f"{next(made)}.plan"
        before = world.committed()
        done = outrider("offsets", "plan", world.group, "--out", str(path), "--reason", "test", "--json", *arguments)
        assert done.exit_code == 0, done.stderr
        assert world.committed() == before
        assert json.loads(path.read_bytes()) == done.json
        return done.json

    return run


def one(plan: dict[str, Any]) -> dict[str, Any]:
    (move,) = plan["moves"]
    assert isinstance(move, dict)
    return move


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def now_ms() -> int:
    return round(time.time() * 1000)


def test_a_plan_says_what_it_is_about(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic()
    world.produce(10)
    world.commit(8)
    made = plan("--to-offset", "3", "--operator", "kim")
    assert (made["group"], made["group_state"], made["members"]) == (world.group, "empty", 0)
    assert (made["operator"], made["reason"], made["target"]) == ("kim", "test", "to offset 3")
    move = one(made)
    assert (move["before"], move["target"], move["delta"]) == (8, 3, -5)
    assert (move["is_clamped"], move["skips_ahead"]) == (False, False)
    assert move["messages"] == {"at_least": 0, "at_most": 5}
    assert made["ledger"] is None


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "3"], 3),
        (["--shift-by", "-2"], 4),
        (["--shift-by", "2"], 8),
        (["--shift-by", "-100"], 0),
        (["--to-offset", "1000"], 10),
    ],
)
def test_every_target(plan: Any, world: OffsetsWorld, arguments: list[str], target: int) -> None:
    world.create_topic()
    world.produce(10)
    world.commit(6)
    move = one(plan(*arguments))
    assert move["target"] == target
    assert move["is_clamped"] == (move["requested"] != target)
    assert move["skips_ahead"] == (target > 6)


def test_times_and_durations(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic()
    at_ms = now_ms() - 3_600_000
    world.produce(10, at_ms=at_ms)
    world.commit(6)
    assert one(plan("--to-time", iso(at_ms + 4000)))["target"] == 4
    assert one(plan("--to-time", iso(at_ms + 3500)))["target"] == 4
    assert one(plan("--by-duration", "2h"))["target"] == 0


def test_a_time_after_the_newest_message_goes_to_the_end_and_is_called_a_skip(plan: Any, world: OffsetsWorld) -> None:
    """Kafka's tool does this without a word: what was meant as a rewind loses what is unread."""
    world.create_topic()
    world.produce(10, at_ms=now_ms() - 3_600_000)
    world.commit(6)
    move = one(plan("--by-duration", "10m"))
    assert (move["target"], move["skips_ahead"]) == (10, True)
    assert "nothing is as new" in move["note"]


def test_latest_does_not_pass_over_an_open_transaction(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic()
    world.produce(2)
    world.transact(3, end="open")
    world.commit(0)
    assert one(plan("--to-latest"))["target"] == 2
    world.end_open_transaction()


def test_a_span_is_an_upper_bound_and_a_scan_is_exact(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic()
    for _ in range(5):
        world.transact(2)
    world.transact(4, end="abort")
    world.commit(20)
    assert one(plan("--to-earliest"))["messages"] == {"at_least": 0, "at_most": 20}
    assert one(plan("--to-earliest", "--scan"))["messages"] == {"at_least": 10, "at_most": 10}


def test_a_skip_over_markers_alone_is_none_once_it_is_scanned(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic()
    world.transact(3)
    world.commit(3)
    assert one(plan("--to-latest"))["skips_ahead"] is True
    assert one(plan("--to-latest", "--scan"))["skips_ahead"] is False


def test_retention_may_have_taken_what_was_unread(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic()
    world.produce(10)
    world.commit(2)
    for deletion in world.admin.delete_records([TopicPartition(world.topic, 0, 6)]).values():
        deletion.result(30)
    move = one(plan("--to-earliest", "--scan"))
    assert (move["target"], move["messages"], move["skips_ahead"]) == (6, {"at_least": 0, "at_most": 0}, False)
    assert "offsets 2 to 5 are gone" in move["note"]


def test_scopes(plan: Any, world: OffsetsWorld) -> None:
    world.create_topic(partitions=3)
    other = world.create_topic(name=f"{world.prefix}.other")
    world.commit(0, 0)
    world.commit(0, topic=other)

    def places(made: dict[str, Any]) -> list[tuple[str, int]]:
        return [(move["topic"], move["partition"]) for move in made["moves"]]

    assert places(plan("--to-earliest")) == [(world.topic, 0), (world.topic, 1), (other, 0)]
    assert places(plan("--to-earliest", "--topic", world.topic)) == [(world.topic, n) for n in range(3)]
    assert places(plan("--to-earliest", "--topic", f"{world.topic}:2,1", "--topic", other)) == [
        (world.topic, 1),
        (world.topic, 2),
        (other, 0),
    ]


def test_csv_there_and_back(plan: Any, outrider: Outrider, world: OffsetsWorld, tmp_path: Path) -> None:
    world.create_topic(partitions=2)
    world.produce(10)
    world.produce(10, partition=1)
    world.commit(7, 8)
    exported = tmp_path / "before.csv"
    exported.write_text(outrider("offsets", "show", world.group, "--csv").stdout)
    targets = tmp_path / "targets.csv"
    plan("--to-offset", "3", "--csv", str(targets))
    assert targets.read_text() == f"{world.topic},0,3\n{world.topic},1,3\n"
    assert [m["target"] for m in plan("--from-file", str(targets))["moves"]] == [3, 3]
    assert [m["delta"] for m in plan("--from-file", str(exported))["moves"]] == [0, 0]
    # A scope narrows the file, and the form of several groups gives this one its lines.
    several = tmp_path / "several.csv"
    several.write_text(f"other,{world.topic},0,1\n{world.group},{world.topic},1,2\n{world.group},{world.topic},0,4\n")
    assert [m["target"] for m in plan("--from-file", str(several))["moves"]] == [4, 2]
    assert [m["target"] for m in plan("--from-file", str(several), "--topic", f"{world.topic}:1")["moves"]] == [2]


def test_the_text_says_what_to_do_next(outrider: Outrider, world: OffsetsWorld, tmp_path: Path) -> None:
    world.create_topic()
    world.produce(10)
    world.commit(2)
    path = tmp_path / "a.plan"
    done = outrider("offsets", "plan", world.group, "--to-latest", "--out", str(path), "--reason", "why not")
    assert "skipped unread: at most 8 messages; needs --allow-skip" in done.stdout
    assert f"outrider offsets apply {path}" in done.stdout
    assert "--scan" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "exactly one of"),
        (["--to-earliest", "--to-latest"], "exactly one of"),
        (["--to-time", "2026-01-01T00:00:00"], "time zone"),
        (["--by-duration", "soon"], "is no duration"),
        (["--by-duration", "9999999d"], "longer ago than any time"),
        (["--from-file", "/nonexistent.csv"], "cannot be read"),
        (["--to-earliest", "--topic", "no-such-topic"], "no topic no-such-topic"),
        (["--to-earliest"], "name what to seed with --topic"),
    ],
)
def test_what_cannot_be_planned(
    outrider: Outrider, world: OffsetsWorld, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    path = tmp_path / "a.plan"
    done: Result = outrider("offsets", "plan", world.group, "--out", str(path), "--reason", "test", *arguments)
    assert done.exit_code == (2 if problem == "exactly one of" else 1)
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not path.exists()


def test_a_reason_is_required(outrider: Outrider, world: OffsetsWorld, tmp_path: Path) -> None:
    done = outrider("offsets", "plan", world.group, "--to-latest", "--out", str(tmp_path / "a.plan"))
    assert done.exit_code == 2
    assert "--reason" in done.stderr
