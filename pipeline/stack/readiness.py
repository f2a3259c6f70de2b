"""Waiting for a server that was just started."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable

from pipeline.stack.child_process import ChildProcess
from pipeline.stack.errors import StackError
from pipeline.stack.ports import HOST

POLL_SECONDS = 0.05
PROBE_SECONDS = 2.0


def says_ready(port: int) -> bool:
    """Whether the component at this port of this machine answers ``GET /readyz`` with 200."""
    # Not urllib, which would ask the proxy that the environment names.
    connection = http.client.HTTPConnection(HOST, port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


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
