"""``outrider example``: what it says where it cannot play."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pipeline.cli import example_commands
from pipeline.reconcile.source_file import read_sources
from tests.support.program import Outrider, program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Outrider:
    return program(monkeypatch, capsys)


def test_an_unknown_workload_is_wrong_usage(outrider: Outrider) -> None:
    assert outrider("example", "gardening").exit_code == 2


def test_missing_packages_are_named(outrider: Outrider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_commands, "NEEDED", ("no_such_package",))
    failed = outrider("example", "media")
    assert (failed.exit_code, "the examples need no_such_package" in failed.stderr) == (1, True)


def test_without_the_source_tree_it_says_so(
    outrider: Outrider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(example_commands, "__file__", str(tmp_path / "pipeline" / "cli" / "example_commands.py"))
    failed = outrider("example", "media")
    assert (failed.exit_code, "part of the source tree" in failed.stderr) == (1, True)


@pytest.mark.parametrize("workload", example_commands.Workload)
def test_each_workload_has_its_parts(workload: str) -> None:
    folder = EXAMPLES / workload
    for name in ("README.md", "schema.sql", "story.py", f"sources/{workload}.toml"):
        assert (folder / name).is_file()
    assert f"outrider example {workload}" in (folder / "README.md").read_text(encoding="utf-8")
    assert list(read_sources(folder / "sources")) == [workload]
    with (folder / "sources" / f"{workload}.toml").open("rb") as file:
        assert tomllib.load(file)["event_types"]
