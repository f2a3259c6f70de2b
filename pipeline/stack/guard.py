"""Ends the parts of a stack when the process that started them is gone, even by SIGKILL.

The guard is a small process of its own that reads a pipe. Whoever owns the stack holds the only
writing end, so the kernel closes it when the owner dies, however it dies, from whichever thread
the parts were started (the parent-death signal of Linux would end them with that thread). At the
end of the pipe the guard ends what still runs and removes the folders it was told of; after an
orderly stop there is nothing left to do.

The file is also the guard's program, run alone and isolated: it imports nothing of the project.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pipeline.stack.process_identity import ProcessIdentity

STOP_SECONDS = 10.0
EXIT_SECONDS = 30.0
POLL_SECONDS = 0.05


class Guard:
    """The owner's side: tells the guard process what to end and what to remove."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            text=True,
            start_new_session=True,
        )

    def end(self, process: ProcessIdentity, number: signal.Signals) -> None:
        """Have this process ended with `number`, and SIGKILL if that does not help."""
        self._tell({"pid": process.pid, "started": process.started, "signal": int(number)})

    def remove(self, folder: Path) -> None:
        """Have this folder removed after the processes have ended."""
        self._tell({"remove": str(folder.absolute())})

    def close(self) -> None:
        """Let the guard do now what it was told, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(EXIT_SECONDS)

    def _tell(self, order: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()


def started(pid: int) -> str | None:
    """Start mark of a live process, as process_identity.py makes it; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 1 :].split()
    if fields[0] in ("Z", "X"):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{fields[19]}"


def run(orders: TextIO) -> None:
    """Read orders to the end of the pipe, then carry them out, last started first."""
    processes: list[dict[str, object]] = []
    folders: list[str] = []
    for line in orders:
        order = json.loads(line)
        if "remove" in order:
            folders.append(order["remove"])
        else:
            processes.append(order)
    end_all(processes)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end_all(processes: list[dict[str, object]]) -> None:
    """Send each its signal, wait together for a bounded time, SIGKILL the rest."""
    deadline = time.monotonic() + STOP_SECONDS
    alive = [order for order in reversed(processes) if send(order, int(str(order["signal"])))]
    while alive and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        alive = [order for order in alive if started(int(str(order["pid"]))) == order["started"]]
    for order in alive:
        send(order, signal.SIGKILL)


def send(order: dict[str, object], number: int) -> bool:
    """Signal the process of an order, if it still is that process."""
    pid = int(str(order["pid"]))
    if started(pid) != order["started"]:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    run(sys.stdin)
