"""Partitions made ahead of time, and dropped whole when their retention is over."""

from __future__ import annotations

import structlog

from pipeline.ledger.pool import Pool
from pipeline.ledger.reconcile import drop_expired_partitions, ensure_partitions, expire_audit
from pipeline.reconcile.metrics import PARTITIONS

INTERVAL_SECONDS = 3_600.0
RETRY_SECONDS = 60.0
DAYS_AHEAD = 14

_log = structlog.get_logger(__name__)


async def keep_partitions(pool: Pool, *, outbox_days: int, attempt_days: int, audit_days: int) -> None:
    """Raises psycopg.Error. Safe to repeat and to run from several reconcilers at once."""
    made = await ensure_partitions(pool, days_ahead=DAYS_AHEAD)
    PARTITIONS.labels("made").inc(len(made))
    dropped = await drop_expired_partitions(pool, outbox_days=outbox_days, attempt_days=attempt_days)
    dropped += await expire_audit(pool, keep_days=audit_days)
    PARTITIONS.labels("dropped").inc(len(dropped))
    if made or dropped:
        _log.info("partitions kept", made=made, dropped=dropped)
