"""Waiting for a server that was just started."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.stack.child_process import ChildProcess
from pipeline.stack.errors import StackError

POLL_SECONDS = 0.05


def wait_ready(process: ChildProcess, answers: Callable[[], bool], seconds: float) -> None:
    """Poll until `answers` says yes. Raises StackError when the process dies or time is up."""
    deadline = time.monotonic() + seconds
    while not answers():
        if not process.is_running:
            raise StackError(process.death_note())
        if time.monotonic() >= deadline:
            raise StackError(
                f"{process.name} gave no answer within {seconds:g} s; the end of its log:\n{process.log_tail()}"
            )
        time.sleep(POLL_SECONDS)
