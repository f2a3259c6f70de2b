"""The second half of a run: items are dispatched along its rate, as far as live traffic leaves their destinations room."""

from __future__ import annotations

import time
from typing import Final

from pipeline.ledger import replay as ledger_replay
from pipeline.replay.pace import Pace
from pipeline.replay.work import Work

PAGE_ROWS: Final = 2_000
WINDOW_SECONDS: Final = 5.0
"""What a destination can start in this time is what may be on its way to it."""
LOOK_SECONDS: Final = 0.25
"""Where no destination has room, or the rate allows none."""


def dispatch_all(work: Work) -> bool:
    """Whether no item is left; False where something else is wished."""
    pace = Pace(work.plan.rate_per_second, time.monotonic())
    while True:
        allowed = min(PAGE_ROWS, pace.allowed(time.monotonic()))
        with work.ledger.transaction():
            if not work.may_go_on("dispatch"):
                return False
            verdicts = _page(work, allowed) if allowed else {}
            if verdicts:
                work.progress.decide(verdicts)
                work.count()
        pace.spend(verdicts.get("replayed", 0))
        work.report(work.progress)
        if not verdicts:
            if not ledger_replay.has_waiting(work.ledger, work.run_id):
                return True
            time.sleep(LOOK_SECONDS if allowed else min(LOOK_SECONDS, pace.wait_seconds))


def _page(work: Work, rows: int) -> dict[str, int]:
    verdicts = ledger_replay.dispatch_items(
        work.ledger,
        work.run_id,
        work.plan.choice,
        page_rows=rows,
        share=work.plan.share,
        window_seconds=WINDOW_SECONDS,
    )
    if not verdicts and (skipped := ledger_replay.skip_disabled(work.ledger, work.run_id)):
        return {"destination_disabled": skipped}
    return verdicts
