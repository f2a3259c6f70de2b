"""``outrider offsets apply`` and ``undo``: refused where it would do harm, on record before it happens, read back after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from pipeline.ledger.runs import alone
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place
from pipeline.settings import environment_of
from pipeline.stack.component import program as command
from tests.support.ledger_rows import connect
from tests.support.offsets_world import OffsetsWorld, join, offsets_of, read, wait_until
from tests.support.program import Outrider, Result, program
from topics.security import KafkaConnection

NO_WATCH = ("--watch-seconds", "0")


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bootstrap_servers: str,
    topic_prefix: str,
    role_dsns: dict[str, str],
) -> Outrider:
    """With the operator's rights, and no more."""
    return program(
        monkeypatch,
        capsys,
        kafka_bootstrap_servers=bootstrap_servers,
        postgres_dsn=role_dsns["operator"],
        topic_prefix=topic_prefix,
    )


@pytest.fixture
def ledger(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        yield connection


@pytest.fixture
def world(bootstrap_servers: str, topic_prefix: str) -> OffsetsWorld:
    """Ten records in each of two partitions, of which the group has read six and none."""
    world = OffsetsWorld(bootstrap_servers, topic_prefix)
    world.create_topic(partitions=2)
    world.produce(10)
    world.produce(10, partition=1)
    world.commit(6, 0)
    return world


@pytest.fixture
def plan(outrider: Outrider, world: OffsetsWorld, tmp_path: Path) -> Callable[..., str]:
    """Plan with these arguments; the file."""
    made = iter(range(1000))

    def run(*arguments: str, group: str | None = None) -> str:
        path = str(tmp_path / f"{next(made)}.plan")
        name = group or world.group
        done = outrider(
            "offsets", "plan", name, "--out", path, "--reason", "incident 7", "--operator", "kim", *arguments
        )
        assert done.exit_code == 0, done.stderr
        return path

    return run


def partitions_of(world: OffsetsWorld, group: str | None = None) -> dict[int, int]:
    return {partition: offset for (_, partition), offset in world.committed(group).items()}


def runs(ledger: psycopg.Connection) -> list[Any]:
    return ledger.execute("select run_id from outrider.run where kind like 'offsets.%' order by started_at").fetchall()


def refused(done: Result, world: OffsetsWorld, ledger: psycopg.Connection, *reasons: str) -> None:
    """Nothing changed and nothing was recorded, for these reasons."""
    assert done.exit_code == 1
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("outrider: refused: ")]
    assert len(lines) == len(reasons), done.stderr
    for line, reason in zip(lines, reasons, strict=True):
        assert reason in line
    assert partitions_of(world) == {0: 6, 1: 0}
    assert runs(ledger) == []


def test_a_rewind_is_applied_recorded_and_read_by_the_group(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld
) -> None:
    path = plan("--to-offset", "2", "--topic", f"{world.topic}:0")
    done = outrider("offsets", "apply", path, "--operator", "lee", "--json")
    assert done.exit_code == 0, done.stderr
    assert partitions_of(world) == {0: 2, 1: 0}
    run = outrider("runs", "show", done.json["run_id"], "--json").json
    assert (run["kind"], run["operator"], run["reason"], run["outcome"]) == (
        "offsets.apply",
        "lee",
        "incident 7",
        "done",
    )
    assert run["before"] == [{"topic": world.topic, "partition": 0, "offset": 6}]
    assert run["after"] == [{"topic": world.topic, "partition": 0, "offset": 2}]
    assert (run["parameters"]["group"], run["parameters"]["planned_by"]) == (world.group, "kim")
    assert run["parameters"]["target"] == "to offset 2"
    assert run["counts"]["rewound"] == {"at_least": 0, "at_most": 4}
    assert (run["counts"]["partitions"], run["counts"]["changed"]) == (1, 1)
    with world.member() as consumer:
        first = next(message for message in read(consumer, 18) if message.partition() == 0)
        assert first.offset() == 2


def test_a_forward_skip_needs_leave(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    # Meant as a rewind, but nothing is as new, so it would go to the end.
    path = plan("--to-time", "2999-01-01T00:00:00Z", "--topic", f"{world.topic}:0")
    refused(outrider("offsets", "apply", path, *NO_WATCH), world, ledger, "skips at most 4 messages")
    assert outrider("offsets", "apply", path, "--allow-skip", *NO_WATCH).exit_code == 0
    assert partitions_of(world) == {0: 10, 1: 0}


def test_a_group_at_work_is_refused_and_not_silently_skipped_over(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = plan("--to-earliest")
    with world.member(client_id="reporting"):
        assert json.loads(Path(plan("--to-earliest")).read_bytes())["group_state"] == "stable"
        done = outrider("offsets", "apply", path, *NO_WATCH)
        refused(done, world, ledger, f"group {world.group} is active (stable; reporting at")
    # It left in good order, so it is gone at once.
    assert outrider("offsets", "apply", path, *NO_WATCH).exit_code == 0


def test_the_broker_itself_refuses_in_each_partitions_answer(world: OffsetsWorld, bootstrap_servers: str) -> None:
    """A group may become active between the check and the change. The call as a whole succeeds even so."""
    groups = KafkaGroups(KafkaConnection(bootstrap_servers=bootstrap_servers))
    with world.member():
        wanted = {Place(world.topic, 0): 1, Place(world.topic, 1): 1}
        answer = groups.alter(world.group, wanted)
        assert answer.keys() == wanted.keys()
        assert all("Unknown member" in why for why in answer.values())
    assert partitions_of(world) == {0: 6, 1: 0}


def test_a_group_that_became_active_after_the_check_is_reported_and_recorded_as_failed(
    outrider: Outrider,
    plan: Callable[..., str],
    world: OffsetsWorld,
    ledger: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = plan("--to-earliest")
    members: list[Consumer] = []
    alter = KafkaGroups.alter

    def join_then_alter(self: KafkaGroups, group: str, offsets: Any) -> dict[Place, str]:
        consumer = world.consumer()
        members.append(consumer)
        consumer.subscribe([world.topic])
        join(consumer)
        return alter(self, group, offsets)

    monkeypatch.setattr(KafkaGroups, "alter", join_then_alter)
    try:
        done = outrider("offsets", "apply", path, *NO_WATCH)
    finally:
        for consumer in members:
            consumer.close()
    assert done.exit_code == 1
    assert "the broker refused 1 of 2 partitions" in done.stderr
    ((run_id,),) = runs(ledger)
    assert str(run_id) in done.stderr
    run = outrider("runs", "show", str(run_id), "--json").json
    assert run["outcome"] == "failed"
    assert run["after"] == run["before"]
    assert run["counts"]["changed"] == 0
    assert partitions_of(world) == {0: 6, 1: 0}


def test_a_group_that_has_moved_since_the_plan_is_refused(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = plan("--to-earliest")
    world.commit(7)
    done = outrider("offsets", "apply", path, *NO_WATCH)
    assert done.exit_code == 1
    assert "6 was planned, 7 is committed" in done.stderr
    assert partitions_of(world) == {0: 7, 1: 0}
    assert runs(ledger) == []
    world.commit(6)
    assert outrider("offsets", "apply", path, *NO_WATCH).exit_code == 0


def test_a_target_that_retention_has_taken_is_refused(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    """The broker would take it, and each consumer's own setting would then choose: the end as often as the start."""
    path = plan("--to-offset", "2", "--topic", f"{world.topic}:0")
    for deletion in world.admin.delete_records([TopicPartition(world.topic, 0, 5)]).values():
        deletion.result(30)
    refused(outrider("offsets", "apply", path, *NO_WATCH), world, ledger, "no longer in the log")


def test_a_plan_for_another_cluster_is_refused(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = Path(plan("--to-earliest"))
    path.write_text(path.read_text().replace('"cluster_id": "', '"cluster_id": "x'))
    refused(outrider("offsets", "apply", str(path), *NO_WATCH), world, ledger, "the plan is for cluster x")


def test_a_killed_member_counts_until_its_session_time_out_and_can_be_waited_for(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = plan("--to-earliest")
    # A static member says nothing when it goes, so to the broker it looks like a killed one.
    with world.member(group_instance_id="report-1", session_timeout_ms=3000, heartbeat_interval_ms=500):
        pass
    assert world.state() == "STABLE"
    done = outrider("offsets", "apply", path, *NO_WATCH)
    refused(done, world, ledger, "report-1 at")
    assert "--wait-seconds" in done.stderr
    done = outrider("offsets", "apply", path, "--wait-seconds", "60", *NO_WATCH)
    assert done.exit_code == 0, done.stderr
    assert "waiting for 1 members" in done.stderr
    assert partitions_of(world) == {0: 0, 1: 0}


def test_waiting_for_members_ends(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = plan("--to-earliest")
    with world.member():
        refused(outrider("offsets", "apply", path, "--wait-seconds", "1", *NO_WATCH), world, ledger, "is active")


def test_a_wait_that_is_interrupted_has_changed_nothing(
    plan: Callable[..., str],
    world: OffsetsWorld,
    ledger: psycopg.Connection,
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
) -> None:
    path = plan("--to-earliest")
    with world.member():
        process = subprocess.Popen(
            command("offsets", "apply", path, "--wait-seconds", "300"),
            env={**os.environ, **environment_of({**settings_values, "postgres_dsn": role_dsns["operator"]})},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert "waiting for 1 members" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("outrider: interrupted: nothing was changed")
    assert "Traceback" not in said
    assert runs(ledger) == []
    assert partitions_of(world) == {0: 6, 1: 0}


def test_an_interrupt_in_the_middle_of_the_change_leaves_a_run_that_can_be_undone(
    outrider: Outrider,
    plan: Callable[..., str],
    world: OffsetsWorld,
    ledger: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = plan("--to-earliest")
    alter = KafkaGroups.alter

    def alter_then_stop(self: KafkaGroups, group: str, offsets: Any) -> dict[Place, str]:
        alter(self, group, offsets)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KafkaGroups, "alter", alter_then_stop)
        done = outrider("offsets", "apply", path, *NO_WATCH)
    ((run_id,),) = runs(ledger)
    assert done.exit_code == 1
    assert f"outrider offsets undo {run_id}" in done.stderr
    assert outrider("runs", "show", str(run_id), "--json").json["outcome"] == "failed"
    assert partitions_of(world) == {0: 0, 1: 0}
    assert outrider("offsets", "undo", str(run_id), "--reason", "stopped", *NO_WATCH).exit_code == 0
    assert partitions_of(world) == {0: 6, 1: 0}


def test_a_consumer_that_uses_assign_looks_like_no_member_and_is_noticed_by_its_commits(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = plan("--to-earliest")
    consumer = world.consumer()
    consumer.assign([TopicPartition(world.topic, 1, 0)])
    stop = threading.Event()

    def go_on_committing() -> None:
        for message in read(consumer, 10):
            consumer.commit(message, asynchronous=False)
            if stop.wait(0.3):
                return

    thread = threading.Thread(target=go_on_committing)
    thread.start()
    try:
        wait_until(lambda: partitions_of(world)[1] > 0, "it commits")
        assert world.state() == "EMPTY"
        done = outrider("offsets", "apply", path, "--watch-seconds", "30")
    finally:
        stop.set()
        thread.join(30)
        consumer.close()
    assert done.exit_code == 1
    assert "without being its member" in done.stderr
    assert "assign()" in done.stderr
    assert runs(ledger) == []
    assert partitions_of(world)[0] == 6


def test_a_commit_right_after_ours_is_found_by_reading_back(
    outrider: Outrider,
    plan: Callable[..., str],
    world: OffsetsWorld,
    ledger: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = plan("--to-earliest")
    alter = KafkaGroups.alter

    def alter_then_lose(self: KafkaGroups, group: str, offsets: Any) -> dict[Place, str]:
        answer = alter(self, group, offsets)
        world.commit(9)
        return answer

    monkeypatch.setattr(KafkaGroups, "alter", alter_then_lose)
    done = outrider("offsets", "apply", path, *NO_WATCH)
    assert done.exit_code == 1
    assert "read back, the offsets are not what was set" in done.stderr
    assert f"{world.topic} partition 0: 0 -> 9" in done.stderr
    ((run_id,),) = runs(ledger)
    assert outrider("runs", "show", str(run_id), "--json").json["outcome"] == "failed"


def test_a_group_that_the_broker_does_not_know_is_seeded_and_unset_again(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld
) -> None:
    group = f"{world.prefix}.new"
    path = plan("--to-offset", "4", "--topic", world.topic, group=group)
    assert json.loads(Path(path).read_bytes())["group_state"] == "unknown to the broker"
    done = outrider("offsets", "apply", path, "--json")
    assert done.exit_code == 0, done.stderr
    assert partitions_of(world, group) == {0: 4, 1: 4}
    assert [row["offset"] for row in done.json["before"]] == [None, None]
    with world.member(group) as consumer:
        assert offsets_of(read(consumer, 12))[0] == 4
    undone = outrider("offsets", "undo", done.json["run_id"], "--reason", "wrong group", *NO_WATCH)
    assert undone.exit_code == 0, undone.stderr
    assert partitions_of(world, group) == {}
    assert world.state(group) == "DEAD"


def test_a_partition_that_was_seeded_beside_others_keeps_its_offset_and_the_undo_says_so(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld
) -> None:
    other = world.create_topic(name=f"{world.prefix}.other")
    done = outrider("offsets", "apply", plan("--to-earliest", "--topic", other), *NO_WATCH, "--json")
    undone = outrider("offsets", "undo", done.json["run_id"], "--reason", "wrong topic", *NO_WATCH)
    assert undone.exit_code == 0, undone.stderr
    assert f"{other} partition 0 had nothing committed before, and keeps 0" in undone.stdout
    assert world.committed() == {(world.topic, 0): 6, (world.topic, 1): 0, (other, 0): 0}


def test_undo_puts_back_and_can_be_undone(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    done = outrider("offsets", "apply", plan("--to-offset", "3"), "--allow-skip", *NO_WATCH, "--json").json
    assert partitions_of(world) == {0: 3, 1: 3}
    undone = outrider("offsets", "undo", done["run_id"], "--reason", "that was wrong", *NO_WATCH, "--json").json
    assert partitions_of(world) == {0: 6, 1: 0}
    run = outrider("runs", "show", undone["run_id"], "--json").json
    assert (run["kind"], run["reason"], run["parameters"]["undoes"]) == (
        "offsets.undo",
        "that was wrong",
        done["run_id"],
    )
    assert outrider("offsets", "undo", undone["run_id"], "--reason", "it was right", *NO_WATCH).exit_code == 0
    assert partitions_of(world) == {0: 3, 1: 3}
    assert len(runs(ledger)) == 3


def test_undo_after_the_group_went_on_needs_a_word(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    done = outrider("offsets", "apply", plan("--to-earliest"), *NO_WATCH, "--json").json
    world.commit(2)
    undo = ("offsets", "undo", done["run_id"], "--reason", "back", *NO_WATCH)
    refused_undo = outrider(*undo)
    assert refused_undo.exit_code == 1
    assert "0 -> 2" in refused_undo.stderr
    assert partitions_of(world) == {0: 2, 1: 0}
    assert outrider(*undo, "--even-if-moved").exit_code == 0
    assert partitions_of(world) == {0: 6, 1: 0}
    assert len(runs(ledger)) == 2


def test_undo_of_an_active_group_is_refused(outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld) -> None:
    done = outrider("offsets", "apply", plan("--to-earliest"), *NO_WATCH, "--json").json
    with world.member():
        undone = outrider("offsets", "undo", done["run_id"], "--reason", "back", *NO_WATCH)
    assert undone.exit_code == 1
    assert "is active" in undone.stderr
    assert partitions_of(world) == {0: 0, 1: 0}


def test_undo_goes_no_further_back_than_the_log(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld
) -> None:
    done = outrider("offsets", "apply", plan("--to-latest"), "--allow-skip", *NO_WATCH, "--json").json
    for deletion in world.admin.delete_records([TopicPartition(world.topic, 1, 4)]).values():
        deletion.result(30)
    undone = outrider("offsets", "undo", done["run_id"], "--reason", "back", *NO_WATCH)
    assert undone.exit_code == 0, undone.stderr
    assert "partition 1: 0 is not in the log any more, so 4 it is" in undone.stderr
    assert partitions_of(world) == {0: 6, 1: 4}


def test_offsets_that_kafka_has_forgotten_come_back(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, bootstrap_servers: str
) -> None:
    done = outrider("offsets", "apply", plan("--to-earliest"), *NO_WATCH, "--json").json
    # As after a week without members.
    KafkaGroups(KafkaConnection(bootstrap_servers=bootstrap_servers)).forget(world.group)
    assert partitions_of(world) == {}
    undo = ("offsets", "undo", done["run_id"], "--reason", "forgotten")
    assert "0 -> nothing" in outrider(*undo).stderr
    assert outrider(*undo, "--even-if-moved").exit_code == 0
    assert partitions_of(world) == {0: 6, 1: 0}


def test_a_run_that_was_killed_in_the_middle_can_be_undone(
    outrider: Outrider,
    plan: Callable[..., str],
    world: OffsetsWorld,
    ledger: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = plan("--to-earliest")
    with monkeypatch.context() as patch:
        # The end of a kill: the change was made, and nothing was written after it.
        patch.setattr("pipeline.offsets.applying.close_run", lambda *given, **more: None)
        assert outrider("offsets", "apply", path, *NO_WATCH).exit_code == 0
    ((run_id,),) = runs(ledger)
    assert outrider("runs", "show", str(run_id), "--json").json["outcome"] == "open"
    assert partitions_of(world) == {0: 0, 1: 0}
    undone = outrider("offsets", "undo", str(run_id), "--reason", "it was killed", *NO_WATCH)
    assert undone.exit_code == 0, undone.stderr
    assert partitions_of(world) == {0: 6, 1: 0}


def test_runs_of_other_kinds_are_not_undone_here(outrider: Outrider, ledger: psycopg.Connection) -> None:
    row = ledger.execute(
        "insert into outrider.run (kind, woken_by) values ('reconcile', 'timer') returning run_id"
    ).fetchone()
    assert row is not None
    done = outrider("offsets", "undo", str(row[0]), "--reason", "why")
    assert (done.exit_code, "of kind reconcile" in done.stderr) == (1, True)
    assert "no run" in outrider("offsets", "undo", str(UUID(int=1)), "--reason", "why").stderr
    assert "no run's id" in outrider("offsets", "undo", "seven", "--reason", "why").stderr


def test_two_operators_take_turns(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, ledger: psycopg.Connection
) -> None:
    path = plan("--to-earliest")
    with alone(ledger, "offsets of group", world.group):
        refused(
            outrider("offsets", "apply", path, *NO_WATCH), world, ledger, "someone else is at work on offsets of group"
        )
    assert outrider("offsets", "apply", path, *NO_WATCH).exit_code == 0


def test_what_does_not_change_is_not_written(
    outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plan("--to-earliest")
    altered: list[Any] = []
    alter = KafkaGroups.alter

    def noted(self: KafkaGroups, group: str, offsets: Any) -> dict[Place, str]:
        altered.append(dict(offsets))
        return alter(self, group, offsets)

    monkeypatch.setattr(KafkaGroups, "alter", noted)
    assert outrider("offsets", "apply", path, *NO_WATCH).exit_code == 0
    assert altered == [{Place(world.topic, 0): 0}]


def test_one_call_takes_one_group(world: OffsetsWorld) -> None:
    """The client's limit that makes a plan one of a single group."""
    two = [ConsumerGroupTopicPartitions(f"{world.prefix}.{name}", [TopicPartition(world.topic, 0, 1)]) for name in "ab"]
    with pytest.raises(ValueError, match="single"):
        world.admin.alter_consumer_group_offsets(two)


def test_new_protocol_groups(outrider: Outrider, plan: Callable[..., str], world: OffsetsWorld) -> None:
    """Groups of the consumer protocol of Kafka 4, which the broker keeps apart from classic ones."""
    group = f"{world.prefix}.modern"
    with world.member(group, group_protocol="consumer") as consumer:
        for message in read(consumer, 20):
            consumer.commit(message, asynchronous=False)
        path = plan("--to-offset", "4", group=group)
        assert "is active" in outrider("offsets", "apply", path, *NO_WATCH).stderr
    done = outrider("offsets", "apply", path, *NO_WATCH)
    assert done.exit_code == 0, done.stderr
    assert partitions_of(world, group) == {0: 4, 1: 4}
