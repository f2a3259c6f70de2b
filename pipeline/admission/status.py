"""How many deliveries stand where, asked of the ledger as often as that costs little."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime

from pipeline.ledger.pool import Pool
from pipeline.ledger.reports import counts_by_state, oldest_due_seconds

FRESH_SECONDS = 1.0
BUSY_SHARE = 0.1
"""At most this share of time goes into counting: a count that took 2 s is good for 20 s."""


class StatusReport:
    """The last answer, renewed when it is no longer fresh; callers at the same time share one question."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = asyncio.Lock()
        self._report: dict[str, object] = {}
        self._fresh_until = 0.0  # on time.monotonic()

    async def current(self) -> dict[str, object]:
        """``counts`` by state, ``succeeded_is_estimate``, ``oldest_due_seconds``, ``at``. Raises psycopg.Error."""
        async with self._lock:
            started = time.monotonic()
            if started < self._fresh_until:
                return self._report
            counts = await counts_by_state(self._pool)
            oldest = await oldest_due_seconds(self._pool)
            ended = time.monotonic()
            self._report = {
                "counts": asdict(counts.by_state),
                "succeeded_is_estimate": counts.is_estimate,
                "oldest_due_seconds": round(oldest, 3),
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            }
            self._fresh_until = ended + max(FRESH_SECONDS, (ended - started) / BUSY_SHARE)
            return self._report
