"""Incident drill: another team's group is rewound by mistake, and that is undone on the record, as docs/consumers.md says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.integration.test_analytics_group import Analytics, counted, expected
from tests.support.attempt_records import PARTITIONS, attempt_record
from tests.support.program import Outrider

PAGE = Path(__file__).resolve().parents[2] / "docs" / "consumers.md"
MESSAGES = 200


def documented_commands() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split("### A group that was rewound by mistake")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def analytics(bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analytics:
    """The example's group, which has read everything."""
    monkeypatch.chdir(tmp_path)
    analytics = Analytics(bootstrap_servers, topic_prefix, tmp_path)
    analytics.topic.publish(attempt_record(number) for number in range(MESSAGES))
    analytics.read()
    return analytics


def test_the_documented_commands_rewind_the_group_and_put_it_back(
    analytics: Analytics, topic_prefix: str, outrider: Outrider
) -> None:
    stood = analytics.committed()
    run = "none yet"
    for command in documented_commands():
        words = shlex.split(re.sub(r"\boutrider\.(?=\w)", f"{topic_prefix}.", re.sub(r"\bRUN\b", run, command)))
        done = outrider(*words[1:])
        assert done.exit_code == 0, f"{command}\n{done.stderr}"
        if " offsets apply " in command:
            found = re.search(r"run ([0-9a-f-]{36})", done.stdout)
            assert found is not None, done.stdout
            run = found[1]
            assert analytics.committed() == dict.fromkeys(range(PARTITIONS), 0)
        if " run list " in command:
            assert run in done.stdout
    assert analytics.committed() == stood
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (0, expected(range(MESSAGES)))
    listed = outrider("run", "list", "--json").json["runs"]
    assert [entry["kind"] for entry in listed] == ["offsets.undo", "offsets.apply"]
    assert listed == outrider("runs", "list", "--json").json["runs"]
    shown = outrider("run", "show", run, "--json").json
    assert (shown["reason"], shown["parameters"]["group"]) == ("meant for another group", analytics.name)
    assert shown == outrider("runs", "show", run, "--json").json


def test_a_group_that_has_read_on_has_counted_nothing_twice_and_its_run_is_not_undone(
    analytics: Analytics, tmp_path: Path, outrider: Outrider
) -> None:
    stood = analytics.committed()
    plan = str(tmp_path / "plan")
    assert (
        outrider("offsets", "plan", analytics.name, "--to-earliest", "--out", plan, "--reason", "slip").exit_code == 0
    )
    run = outrider("offsets", "apply", plan, "--watch-seconds", "0", "--json").json["run_id"]
    analytics.topic.publish([attempt_record(MESSAGES)])
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (MESSAGES + 1, expected(range(MESSAGES + 1)))
    refused = outrider("offsets", "undo", run, "--reason", "too late", "--watch-seconds", "0")
    assert (refused.exit_code, "the group has moved since the run" in refused.stderr) == (1, True)
    assert analytics.committed() != stood
