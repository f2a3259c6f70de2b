"""The commands that docs/replay.md shows are commands of the program, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from pipeline.cli import build_app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "replay.md"
LINES = re.findall(r"^\$ (outrider [^#\n]+?)\s*(?:#.*)?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_shows_each_command() -> None:
    shown = {line.split()[2] for line in LINES if line.startswith("outrider replay ")}
    assert {"plan", "run", "status", "pause", "resume", "report", "rebuild"} <= shown


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_is_understood(line: str) -> None:
    command = typer.main.get_command(build_app())
    words = shlex.split(line)[1:]
    while hasattr(command, "get_command"):
        name = words.pop(0)
        found = command.get_command(None, name)  # type: ignore[arg-type]
        assert found is not None, f"there is no command {name}"
        command = found
    command.make_context(command.name, words)
