"""What `--help` prints is what the program's text says: brackets in it are read as markup, and vanish."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from rich.text import Text

from pipeline.cli import build_app


def texts() -> Iterator[tuple[str, str]]:
    """(where, text) of every command and option."""
    waiting = [("outrider", typer.main.get_command(build_app()))]
    while waiting:
        name, command = waiting.pop()
        yield name, command.help or ""
        for parameter in command.params:
            yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
        waiting += [(f"{name} {word}", below) for word, below in getattr(command, "commands", {}).items()]


def test_no_help_text_loses_anything_to_markup() -> None:
    shown = {where: Text.from_markup(text).plain for where, text in texts()}
    assert shown == dict(texts())


@pytest.mark.parametrize(("option", "default"), [("rate", "50"), ("retry_max_age_seconds", "432000")])
def test_the_limits_of_a_new_destination_are_told(option: str, default: str) -> None:
    assert default in dict(texts())[f"outrider destination add {option}"]
