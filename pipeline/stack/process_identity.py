"""Names a process so that a later process under the same number is not taken for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

POLL_SECONDS = 0.02
KILL_SECONDS = 10.0
# Fields of /proc/<pid>/stat after the command's closing parenthesis.
STATE_FIELD = 0
START_FIELD = 19


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process id with the moment of its start: a boot's id and clock ticks since that boot."""

    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return identity_of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended before."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identity_of(pid: int) -> ProcessIdentity | None:
    """The process that has this id now, or None when there is none or only its zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold spaces and parentheses; what follows its last one does not.
    fields = text[text.rindex(")") + 1 :].split()
    if fields[STATE_FIELD] in ("Z", "X"):
        return None
    return ProcessIdentity(pid, f"{_boot_id()}/{fields[START_FIELD]}")


def end_all(processes: Sequence[tuple[ProcessIdentity, signal.Signals]], seconds: float) -> list[int]:
    """Send each process its signal, wait for all together, SIGKILL those that are left.

    They need not be children. Returns the pids that SIGKILL had to end.
    """
    asked = [process for process, number in processes if process.send(number)]
    stubborn = _still_alive(asked, seconds)
    for process in stubborn:
        process.send(signal.SIGKILL)
    _still_alive(stubborn, KILL_SECONDS)
    return [process.pid for process in stubborn]


def _still_alive(processes: list[ProcessIdentity], seconds: float) -> list[ProcessIdentity]:
    deadline = time.monotonic() + seconds
    while alive := [process for process in processes if process.is_alive]:
        if time.monotonic() >= deadline:
            return alive
        time.sleep(POLL_SECONDS)
    return []


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
