"""Ends the parts of a stack when the process that started them is gone, even by SIGKILL.

The guard is a small process of its own that reads a pipe. Whoever owns the stack holds the only
writing end, so the kernel closes it when the owner dies, however it dies and whichever of its
threads started the parts (Linux's parent-death signal would end them with that thread). At the end
of the pipe the guard ends what still runs and removes the folders it was told of; after an orderly
stop there is nothing left to do.

This module is also the guard's program: `python -m pipeline.stack.guard`.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.stack.process_identity import ProcessIdentity, end_all

STOP_SECONDS = 10.0
EXIT_SECONDS = 30.0


class Guard:
    """The owner's side: tells the guard process what to end and what to remove."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.stack.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            text=True,
            # Ctrl-C on the owner's terminal must not end the guard.
            start_new_session=True,
        )
        pipe = self._process.stdin
        assert pipe is not None, "asked for above"
        self._pipe = pipe

    def end(self, process: ProcessIdentity, number: signal.Signals) -> None:
        """Have this process ended with `number`, and with SIGKILL if that does not help."""
        self._tell({"pid": process.pid, "started": process.started, "signal": int(number)})

    def remove(self, folder: Path) -> None:
        """Have this folder removed after the processes have ended."""
        self._tell({"remove": str(folder.absolute())})

    def release(self) -> None:
        """Let everything live on without its owner."""
        self._tell({"release": True})
        self.close()

    def close(self) -> None:
        """Let the guard do now what it was told, and wait for it."""
        with suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait(EXIT_SECONDS)

    def _tell(self, order: dict[str, object]) -> None:
        # A guard that has died can guard nothing; the owner still ends its parts itself.
        with suppress(BrokenPipeError):
            self._pipe.write(json.dumps(order) + "\n")
            self._pipe.flush()


def carry_out(lines: Iterable[str]) -> None:
    """Read orders to the end of the pipe, then end processes, last started first, and remove folders."""
    processes: list[tuple[ProcessIdentity, signal.Signals]] = []
    folders: list[str] = []
    for line in lines:
        order = json.loads(line)
        if "release" in order:
            return
        if "remove" in order:
            folders.append(order["remove"])
        else:
            processes.append((ProcessIdentity(order["pid"], order["started"]), signal.Signals(order["signal"])))
    end_all(processes[::-1], STOP_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    carry_out(sys.stdin)
