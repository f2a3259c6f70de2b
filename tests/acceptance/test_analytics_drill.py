"""Incident drill: the offsets of another team's group are rewound by mistake, and that is undone on the record."""

from __future__ import annotations

from pathlib import Path

from tests.integration.test_analytics_group import Analytics, counted, expected
from tests.support.attempt_records import PARTITIONS, attempt_record
from tests.support.program import Outrider

MESSAGES = 200


def test_a_rewound_analytics_group_is_put_back_and_would_have_counted_nothing_twice(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path, outrider: Outrider
) -> None:
    analytics = Analytics(bootstrap_servers, topic_prefix, tmp_path)
    analytics.topic.publish(attempt_record(number) for number in range(MESSAGES))
    analytics.read()
    stood = analytics.committed()

    def rewind(file: str) -> str:
        """By plan and apply; the run's id."""
        plan = str(tmp_path / file)
        planned = outrider(
            "offsets", "plan", analytics.name, "--to-earliest", "--scan", "--out", plan, "--reason", "slip", "--json"
        )
        assert planned.exit_code == 0, planned.stderr
        applied = outrider("offsets", "apply", plan, "--watch-seconds", "0", "--json")
        assert applied.exit_code == 0, applied.stderr
        assert analytics.committed() == dict.fromkeys(range(PARTITIONS), 0)
        return str(applied.json["run_id"])

    # Found in time: the run is undone, and the group reads nothing twice.
    run = rewind("first.plan")
    undone = outrider("offsets", "undo", run, "--reason", "wrong group", "--watch-seconds", "0", "--json")
    assert undone.exit_code == 0, undone.stderr
    assert analytics.committed() == stood
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (0, expected(range(MESSAGES)))

    # Found too late: all of it was read again, and every figure is as before.
    late = rewind("second.plan")
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (MESSAGES, expected(range(MESSAGES)))
    assert analytics.committed() == stood
    nothing = outrider("offsets", "undo", late, "--reason", "too late", "--watch-seconds", "0", "--json")
    assert nothing.exit_code == 0, nothing.stderr
    assert analytics.committed() == stood

    # The record of it, by either name.
    listed = outrider("run", "list", "--json").json["runs"]
    assert [entry["kind"] for entry in listed] == ["offsets.undo", "offsets.apply", "offsets.undo", "offsets.apply"]
    assert listed == outrider("runs", "list", "--json").json["runs"]
    shown = outrider("run", "show", run, "--json").json
    assert (shown["reason"], shown["parameters"]["group"]) == ("slip", analytics.name)
    assert {row["offset"] for row in shown["after"]} == {0}
    assert shown == outrider("runs", "show", run, "--json").json
