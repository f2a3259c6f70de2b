"""What bounds the wait for a server's answer: silence, not the time that an answer takes."""

from __future__ import annotations

from collections.abc import Generator

import psycopg
import pytest
from psycopg.waiting import Ready, Wait

from connectors.postgres import patience
from connectors.postgres.patience import _bounded


def command(answers: int) -> Generator[Wait, Ready, str]:
    """A command that is done once so many pieces of its answer have come."""
    while answers:
        if (yield Wait.R):
            answers -= 1
    return "done"


def test_the_result_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "ANSWER_SECONDS_MAX", 3_600.0)
    bounded = _bounded(command(2))
    assert next(bounded) == Wait.R
    for ready in (Ready.NONE, Ready.R, Ready.NONE):
        assert bounded.send(ready) == Wait.R
    with pytest.raises(StopIteration) as done:
        bounded.send(Ready.R)
    assert done.value.value == "done"


def test_a_command_that_needs_no_answer_passes() -> None:
    with pytest.raises(StopIteration) as done:
        next(_bounded(command(0)))
    assert done.value.value == "done"


def test_silence_ends_it_and_a_piece_of_the_answer_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 59.0, 100.0, 159.0, 161.0])
    monkeypatch.setattr(patience.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(patience, "ANSWER_SECONDS_MAX", 60.0)
    bounded = _bounded(command(9))
    next(bounded)
    bounded.send(Ready.NONE)  # 59 s
    bounded.send(Ready.R)  # at 100 s: heard
    bounded.send(Ready.NONE)  # 59 s since
    with pytest.raises(psycopg.OperationalError, match="not answered for 61 s"):
        bounded.send(Ready.NONE)
