"""SIGKILLs at set points of the progress, and the restarts after them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.demo.errors import DemoError
from pipeline.demo.facts import Kill
from pipeline.stack.child_process import ChildProcess

DOWN_SECONDS = 1.0
"""From a kill to the new start."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class PlannedKill:
    after: int
    """Deliveries received when it comes."""
    choose: Callable[[], ChildProcess]
    """Asked at that moment."""


class Killer:
    """Kills what it is told to, and knows which process is down on purpose."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._down: ChildProcess | None = None
        self.planned = 0
        self.kills: list[Kill] = []

    async def run(self, plan: Sequence[PlannedKill], received: Callable[[], int]) -> None:
        """Carry out the plan in order. Raises StackError when a process cannot be started again."""
        self.planned = len(plan)
        for planned in plan:
            while received() < planned.after:  # noqa: ASYNC110 (the count comes from another process's file)
                await asyncio.sleep(POLL_SECONDS)
            self._down = process = planned.choose()
            killed_at = time.time()
            process.kill()
            self.kills.append(Kill(process.name, killed_at, received()))
            self._note(f"SIGKILL {process.name}, {received()} deliveries received")
            await asyncio.sleep(DOWN_SECONDS)
            process.start()
            self._down = None
            self._note(f"started {process.name} again")

    def check(self, processes: Sequence[ChildProcess]) -> None:
        """Raise DemoError for one that is down, and not because of us."""
        for process in processes:
            if process is not self._down and not process.is_running:
                raise DemoError(process.death_note())
