"""A release has to say what it is about, before anything is asked."""

from __future__ import annotations

import pytest

from tests.support.program import program


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name entries, or choose them by"),
        (("17", "--all"), "name entries, or choose them by"),
        (("17", "--key", "acme"), "name entries, or choose them by"),
        (tuple(str(number) for number in range(1_001)), "at most 1000 entries may be named"),
    ],
)
def test_entries_are_named_or_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    result = program(monkeypatch, capsys)("quarantine", "release", *arguments, "--reason", "a reason")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout
