"""The second half of a run: items are dispatched along its rate, as far as live traffic leaves their destinations room."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import psycopg

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.runs import count_run
from pipeline.replay.pace import Pace
from pipeline.replay.plan import Plan
from pipeline.replay.progress import Progress

PAGE_ROWS: Final = 1_000
WINDOW_SECONDS: Final = 5.0
"""What a destination can start in this time is what may be on its way to it."""
LOOK_SECONDS: Final = 0.25
"""Where no destination has room, or the rate allows none."""


@dataclass(frozen=True, slots=True)
class Dispatching:
    ledger: psycopg.Connection
    run_id: UUID
    plan: Plan
    driver: str
    progress: Progress
    report: Callable[[Progress], None]

    def work(self) -> bool:
        """Whether no item is left; False where something else is wished."""
        pace = Pace(self.plan.rate_per_second, time.monotonic())
        while True:
            allowed = min(PAGE_ROWS, pace.allowed(time.monotonic()))
            with self.ledger.transaction():
                if ledger_replay.drive(self.ledger, self.run_id, self.driver) != ("run", "dispatch"):
                    return False
                verdicts = self._page(allowed) if allowed else {}
                if verdicts:
                    self.progress.decide(verdicts)
                    count_run(self.ledger, self.run_id, self.progress.counts())
            pace.spend(verdicts.get("replayed", 0))
            self.report(self.progress)
            if not verdicts:
                if not ledger_replay.has_waiting(self.ledger, self.run_id):
                    return True
                time.sleep(LOOK_SECONDS if allowed else min(LOOK_SECONDS, pace.wait_seconds))

    def _page(self, rows: int) -> dict[str, int]:
        verdicts = ledger_replay.dispatch_items(
            self.ledger,
            self.run_id,
            self.plan.choice,
            page_rows=rows,
            share=self.plan.share,
            window_seconds=WINDOW_SECONDS,
        )
        if not verdicts and (skipped := ledger_replay.skip_disabled(self.ledger, self.run_id)):
            return {"destination_disabled": skipped}
        return verdicts
