"""Driving a run: from what was selected to the last dispatch, in transactions each of which may be the last.

The run row has the phase, the cursors and what is wished. Whoever drives holds the run's lock in the session in which
all of it happens, so two processes never drive one run, and one that was killed leaves nothing behind but a run that
goes on where its last transaction ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.replay import Phase, Source, Wish
from pipeline.ledger.runs import Run, alone, close_run, find_run
from pipeline.replay.dispatching import dispatch_all
from pipeline.replay.errors import ReplayError
from pipeline.replay.plan import Plan, checked_plan
from pipeline.replay.progress import Progress
from pipeline.replay.rebuilding import read_attempts, rebuild_from_topic, release_rebuilt
from pipeline.replay.selecting import select_from_ledger, select_from_topic
from pipeline.replay.work import Work
from pipeline.settings import Settings

KIND = "replay"
PAUSE_LOOK_SECONDS = 0.5

_SOON_GONE = "set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3"
"""The lock lives as long as the session: of a host that is gone, the server must notice it."""

Say = Callable[[str], None]
Step = Callable[[Work], bool]

_STEPS: dict[Source, dict[Phase, tuple[Step, Phase]]] = {
    "topic": {"select": (select_from_topic, "dispatch"), "dispatch": (dispatch_all, "over")},
    "ledger": {"select": (select_from_ledger, "dispatch"), "dispatch": (dispatch_all, "over")},
    "dead": {"select": (select_from_ledger, "dispatch"), "dispatch": (dispatch_all, "over")},
    "rebuild": {
        "evidence": (read_attempts, "select"),
        "select": (rebuild_from_topic, "dispatch"),
        "dispatch": (release_rebuilt, "over"),
    },
}
"""What is done in each phase, and the phase that follows."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a drive ended: the run is done or cancelled."""

    run_id: UUID
    outcome: str
    progress: Progress
    raised: list[dict[str, Any]]
    """Sequences that were behind the topic: ``sequence``, ``was``, ``raised_to``."""


@dataclass(slots=True)
class Driver:
    """One process at work on one run."""

    settings: Settings
    ledger: psycopg.Connection
    run_id: UUID
    plan: Plan
    say: Say
    report: Callable[[Progress], None]
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")

    def drive(self) -> Ended:
        """Until the run is over. Raises BusyError where another process drives it, ReplayError, or KeyboardInterrupt,
        after which the run can be driven on."""
        self.ledger.execute(_SOON_GONE)
        with alone(self.ledger, KIND, str(self.run_id)):
            try:
                return self._drive()
            finally:
                if not self.ledger.closed and not self.ledger.broken:
                    ledger_replay.leave(self.ledger, self.run_id, self.name)

    def _drive(self) -> Ended:
        progress = Progress.of(self.ledger, self.run_id)
        is_told = False
        while True:
            wish, phase = self._look()
            if wish == "cancel":
                return self._end(progress, "cancelled")
            if wish == "pause":
                if not is_told:
                    self.say(f"paused; outrider replay resume {self.run_id} goes on")
                is_told = True
                time.sleep(PAUSE_LOOK_SECONDS)
                continue
            is_told = False
            work = Work(self.settings, self.ledger, self.run_id, self.plan, self.name, progress, self.report)
            step, following = _STEPS[self.plan.source][phase]
            if not step(work):
                continue
            if following == "over":
                return self._end(progress, "done")
            with self.ledger.transaction():
                ledger_replay.enter_phase(self.ledger, self.run_id, following)

    def _look(self) -> tuple[Wish, Phase]:
        found = ledger_replay.drive(self.ledger, self.run_id, self.name)
        if found is None:
            raise ReplayError(f"run {self.run_id} is over: outrider replay status {self.run_id}")
        return found

    def _end(self, progress: Progress, outcome: str) -> Ended:
        end_run(self.ledger, self.run_id, progress, cancelled=outcome == "cancelled")
        self.report(progress)
        run = find_run(self.ledger, self.run_id)
        return Ended(self.run_id, outcome, progress, raised=(run and run.after) or [])


def end_run(ledger: psycopg.Connection, run_id: UUID, progress: Progress, *, cancelled: bool) -> None:
    with ledger.transaction():
        ledger_replay.enter_phase(ledger, run_id, "over")
        error = "cancelled" if cancelled else None
        close_run(ledger, run_id, after=None, counts=progress.counts(), error=error)


def run_of(ledger: psycopg.Connection, run_id: UUID) -> tuple[Run, Plan]:
    """The run and the plan that it goes by. Raises ReplayError."""
    run = find_run(ledger, run_id)
    if run is None or run.kind != KIND:
        raise ReplayError(f"no replay {run_id}: see outrider runs list --kind {KIND}")
    try:
        return run, checked_plan(msgspec.json.encode(run.before))
    except ReplayError as error:
        raise ReplayError(f"the plan of run {run_id} {error}") from None
