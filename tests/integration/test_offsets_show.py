"""``outrider offsets show``: what is unread, in messages, of groups of every kind."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.offsets_world import OffsetsWorld
from tests.support.program import Outrider, program


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bootstrap_servers: str) -> Outrider:
    """Without a database: looking at a group needs none."""
    return program(monkeypatch, capsys, kafka_bootstrap_servers=bootstrap_servers, postgres_dsn="host=127.0.0.1 port=1")


@pytest.fixture
def world(bootstrap_servers: str, topic_prefix: str) -> OffsetsWorld:
    return OffsetsWorld(bootstrap_servers, topic_prefix)


def rows(outrider: Outrider, world: OffsetsWorld, *arguments: str) -> list[dict[str, Any]]:
    shown = outrider("offsets", "show", world.group, "--json", *arguments)
    assert shown.exit_code == 0, shown.stderr
    partitions: list[dict[str, Any]] = shown.json["partitions"]
    return partitions


def test_lag_is_in_messages_without_markers_and_aborted_records(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic(partitions=2)
    world.produce(4)
    world.transact(3)
    world.transact(5, end="abort")
    world.transact(2)
    world.commit(1, 0)
    first, second = rows(outrider, world)
    # Offsets: 4 plain, 3 and a marker, 5 and a marker, 2 and a marker.
    assert (first["committed"], first["log_end"], first["span"]) == (1, 17, 16)
    assert first["lag"] == {"at_least": 8, "at_most": 8}
    assert second["lag"] == {"at_least": 0, "at_most": 0}
    shown = outrider("offsets", "show", world.group)
    assert "unread: 8 messages" in shown.stdout


def test_markers_alone_are_no_lag(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic()
    world.transact(3)
    world.commit(3)
    (row,) = rows(outrider, world)
    assert (row["span"], row["lag"], row["oldest_unread_at"]) == (1, {"at_least": 0, "at_most": 0}, None)


def test_an_open_transaction_is_in_no_lag_and_is_said(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic()
    world.produce(2)
    world.transact(3, end="open")
    world.produce(1)
    world.commit(0)
    (row,) = rows(outrider, world)
    assert (row["stable_end"], row["log_end"], row["lag"]["at_most"]) == (2, 6, 2)
    assert "holds back the last 4 offsets" in outrider("offsets", "show", world.group).stdout
    world.end_open_transaction()


def test_counting_is_bounded_and_then_gives_a_range(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic(partitions=2)
    world.produce(500)
    world.produce(3, partition=1)
    world.commit(0, 0)
    first, second = rows(outrider, world, "--count-max", "20")
    # Each partition has its share, so that none hides another.
    assert first["lag"] == {"at_least": 10, "at_most": 500}
    assert second["lag"] == {"at_least": 3, "at_most": 3}
    shown = outrider("offsets", "show", world.group, "--count-max", "20")
    assert "unread: 13 to 503 messages" in shown.stdout
    assert "--count-max" in shown.stdout


def test_the_age_of_the_oldest_unread(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic()
    at_ms = round(time.time() * 1000) - 3_600_000
    world.produce(5, at_ms=at_ms)
    world.commit(2)
    (row,) = rows(outrider, world)
    moment = datetime.fromisoformat(row["oldest_unread_at"])
    assert moment == datetime.fromtimestamp((at_ms + 2000) / 1000, UTC)
    assert "0:59:5" in outrider("offsets", "show", world.group).stdout


def test_members_and_what_they_hold(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic(partitions=2)
    with world.member(client_id="reporting") as consumer:
        assert len(consumer.assignment()) == 2
        shown = outrider("offsets", "show", world.group, "--json").json
        assert shown["state"] == "stable"
        (member,) = shown["members"]
        assert member["client_id"] == "reporting"
        assert [row["member"].split(" at ")[0] for row in shown["partitions"]] == ["reporting", "reporting"]
    shown = outrider("offsets", "show", world.group, "--json").json
    assert (shown["state"], shown["members"]) == ("empty", [])


def test_partitions_without_a_commit_are_shown_without_a_lag(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic(partitions=2)
    world.produce(5, partition=1)
    world.commit(0)
    first, second = rows(outrider, world)
    assert first["lag"] == {"at_least": 0, "at_most": 0}
    assert (second["committed"], second["lag"], second["span"]) == (None, None, None)


def test_a_group_that_nobody_knows(outrider: Outrider, world: OffsetsWorld) -> None:
    shown = outrider("offsets", "show", world.group)
    assert shown.exit_code == 0
    assert "unknown to the broker" in shown.stdout
    assert "committed nothing" in shown.stdout


def test_a_commit_that_outlived_its_topic_is_left_out(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic()
    other = world.create_topic(name=f"{world.prefix}.other")
    world.commit(0)
    world.commit(0, topic=other)
    world.admin.delete_topics([other])[other].result(30)
    assert {row["topic"] for row in rows(outrider, world)} == {world.topic}


def test_the_export_is_the_csv_of_kafkas_tool(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic(partitions=2)
    other = world.create_topic(name=f"{world.prefix}.other")
    world.produce(9)
    world.commit(7, 0)
    world.commit(0, topic=other)
    shown = outrider("offsets", "show", world.group, "--csv")
    assert shown.stdout == f"{world.topic},0,7\n{world.topic},1,0\n{other},0,0\n"
    assert outrider("offsets", "show", world.group, "--csv", "--topic", other).stdout == f"{other},0,0\n"


def test_several_groups(outrider: Outrider, world: OffsetsWorld) -> None:
    world.create_topic()
    world.produce(9)
    world.commit(7)
    other = f"{world.prefix}.other,group"
    world.commit(2, group=other)
    shown = outrider("offsets", "show", world.group, other, "--csv")
    assert shown.stdout == f'{world.group},{world.topic},0,7\n"{other}",{world.topic},0,2\n'
    lines = outrider("offsets", "show", world.group, other, "--json").stdout.splitlines()
    assert [json.loads(line)["group"] for line in lines] == [world.group, other]
    text = outrider("offsets", "show", world.group, other).stdout
    assert "unread: 2 messages" in text
    assert "unread: 7 messages" in text


def test_a_group_has_a_name(outrider: Outrider) -> None:
    assert outrider("offsets", "show", "").exit_code == 2


def test_no_broker_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outrider = program(monkeypatch, capsys, kafka_bootstrap_servers="127.0.0.1:1")
    shown = outrider("offsets", "show", "any")
    assert shown.exit_code == 1
    assert "OUTRIDER_KAFKA_BOOTSTRAP_SERVERS" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1
