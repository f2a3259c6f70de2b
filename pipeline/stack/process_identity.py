"""Names a process so that a later process under the same number is not taken for it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

POLL_SECONDS = 0.02
# Fields of /proc/<pid>/stat after the command's closing parenthesis: state, ..., start time.
STATE_FIELD = 0
START_FIELD = 19


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process id with the moment of its start: clock ticks since a boot, and that boot's id."""

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

    def wait(self, seconds: float) -> bool:
        """Wait for the end of a process that need not be a child; False after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.is_alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
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


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
