"""``outrider topics describe``: the contracts as documents, and the check against the released ones."""

from __future__ import annotations

import json

import pytest

from pipeline.cli import topics_commands
from tests.support.program import Outrider, program
from topics.contract import KINDS, topic_schema


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Outrider:
    return program(monkeypatch, capsys, topic_prefix="acme")


def test_every_topic_is_described_under_its_own_name(outrider: Outrider) -> None:
    described = outrider("topics", "describe").json
    assert {channel["address"] for channel in described["channels"].values()} == {f"acme.{topic}" for topic in KINDS}


def test_one_topic_with_or_without_its_prefix(outrider: Outrider) -> None:
    for name in ("attempts", "acme.attempts"):
        assert outrider("topics", "describe", "--topic", name, "--format", "json-schema").json == topic_schema(
            "attempts"
        )
        assert outrider("topics", "describe", "--topic", name).json["channels"].keys() == {"attempts"}
    assert outrider("topics", "describe", "--format", "json-schema").json.keys() == {f"acme.{topic}" for topic in KINDS}


def test_the_check_passes_today(outrider: Outrider) -> None:
    assert outrider("topics", "describe", "--check").exit_code == 0


def test_the_check_fails_where_readers_would_break_and_names_the_place(
    outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = json.loads(json.dumps({topic: topic_schema(topic) for topic in KINDS}))
    released["attempts"]["$defs"]["Attempt"]["properties"]["tenant"] = {"type": "string"}
    monkeypatch.setattr(topics_commands, "released_contracts", lambda: released)
    found = outrider("topics", "describe", "--check")
    assert (found.exit_code, found.stdout) == (1, "breaks readers: attempts: attempt/value/tenant is gone\n")
    as_json = outrider("topics", "describe", "--check", "--json")
    assert as_json.json == {
        "changes": [{"topic": "attempts", "place": "attempt/value/tenant", "what": "is gone", "breaks": True}]
    }
    assert outrider("topics", "describe", "--check", "--topic", "dispatch").exit_code == 0


def test_wrong_usage_is_named(outrider: Outrider) -> None:
    unknown = outrider("topics", "describe", "--topic", "rumours")
    assert (unknown.exit_code, "no topic rumours" in unknown.stderr) == (1, True)
    assert outrider("topics", "describe", "--json").exit_code == 2
    assert outrider("topics", "describe", "--format", "prose").exit_code == 2
