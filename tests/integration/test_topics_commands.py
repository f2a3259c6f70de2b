"""`outrider topics` against a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not declared so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from pipeline.settings import environment_of

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(bootstrap_servers: str, topic_prefix: str) -> Run:
    def run(*arguments: str, **changes: object) -> subprocess.CompletedProcess[str]:
        values: Mapping[str, object] = {
            "kafka_bootstrap_servers": bootstrap_servers,
            "topic_prefix": topic_prefix,
            "topic_replication_factor": 1,
            "topic_min_insync_replicas": 1,
            "dispatch_partitions": 2,
            "attempts_partitions": 2,
            **changes,
        }
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "topics", *arguments],
            env={**environment_of(values), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def found(result: subprocess.CompletedProcess[str], part: str = "differences") -> list[dict[str, Any]]:
    differences: list[dict[str, Any]] = json.loads(result.stdout)[part]
    return differences


def set_topic(bootstrap_servers: str, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_apply_creates_what_diff_misses_and_is_idempotent(run: Run, topic_prefix: str) -> None:
    before = run("diff", "--json")
    assert before.returncode == 1
    assert {difference["actual"] for difference in found(before)} == {None}
    applied = run("apply")
    assert (applied.returncode, applied.stderr) == (0, "")
    assert f"created {topic_prefix}.dispatch: 2 partitions" in applied.stdout
    assert run("diff").returncode == 0
    again = run("apply")
    assert (again.returncode, again.stdout) == (0, "nothing to apply\n")


def test_more_partitions_are_explained_and_need_a_flag(run: Run, topic_prefix: str) -> None:
    assert run("apply").returncode == 0
    refused = run("apply", dispatch_partitions=3)
    assert refused.returncode == 1
    assert "more partitions move keys" in refused.stdout
    assert found(run("diff", "--json", dispatch_partitions=3))[0]["actual"] == "2"
    allowed = run("apply", "--allow-more-partitions", dispatch_partitions=3)
    assert (allowed.returncode, allowed.stdout) == (0, f"set {topic_prefix}.dispatch: partitions 2 -> 3\n")
    assert run("diff", dispatch_partitions=3).returncode == 0
    fewer = run("apply", "--allow-more-partitions", "--allow-data-loss")
    assert fewer.returncode == 1
    assert "cannot take partitions away" in fewer.stdout


def test_settings_are_mended_and_retention_is_not_lowered_unasked(
    run: Run, topic_prefix: str, bootstrap_servers: str
) -> None:
    assert run("apply").returncode == 0
    topic = f"{topic_prefix}.attempts"
    set_topic(bootstrap_servers, topic, retention_ms="-1", max_message_bytes="2000000", compression_type="lz4")
    by_aspect = {difference["aspect"]: difference["remedy"] for difference in found(run("diff", "--json"))}
    assert by_aspect == {
        "retention.ms": "allow-data-loss",
        "max.message.bytes": "apply",
        "compression.type": "keep",
    }
    refused = run("apply", "--json")
    assert refused.returncode == 1
    assert [difference["aspect"] for difference in found(refused, "applied")] == ["max.message.bytes"]
    assert [difference["aspect"] for difference in found(refused, "refused")] == ["retention.ms"]
    assert run("apply", "--allow-data-loss").returncode == 0
    assert [difference["aspect"] for difference in found(run("diff", "--json"))] == ["compression.type"]
    assert run("diff").returncode == 0, "somebody's own setting is shown, and is no fault"


def test_a_broker_that_does_not_answer_is_one_line_that_names_the_setting(run: Run) -> None:
    result = run("diff", kafka_bootstrap_servers="127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "OUTRIDER_KAFKA_BOOTSTRAP_SERVERS" in result.stderr


def test_copies_that_cannot_be_reached_are_one_line_that_names_the_settings(run: Run) -> None:
    result = run("apply", topic_min_insync_replicas=2)
    assert result.returncode == 1
    assert "OUTRIDER_TOPIC_MIN_INSYNC_REPLICAS" in result.stderr


def test_list_tells_the_contract_of_each_topic(run: Run, topic_prefix: str) -> None:
    topics = {topic["name"]: topic for topic in json.loads(run("list", "--json").stdout)}
    assert set(topics[f"{topic_prefix}.dispatch"]["contract"]["headers"]) >= {"id", "delivery_id", "dispatch_seq"}
    assert "key: destination_id" in run("list").stdout


def test_wrong_usage_is_exit_code_2(run: Run) -> None:
    assert run("apply", "--allow-everything").returncode == 2
