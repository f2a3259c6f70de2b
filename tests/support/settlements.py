"""Results of attempts for tests that settle by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pipeline.ledger.deliveries import BreakerLimits, Claimed, Settlement

# So long that a slow machine does not see its end.
BREAKER = BreakerLimits(failures=10, open_seconds_first=100.0, open_seconds_max=6_000.0)


def settlement(delivery_id: str, attempt: int = 1, dispatch_seq: int = 1, **changes: Any) -> Settlement:
    """A success, unless ``changes`` say otherwise."""
    success = Settlement(
        delivery_id=delivery_id,
        attempt=attempt,
        dispatch_seq=dispatch_seq,
        state="succeeded",
        delay_seconds=None,
        waiting_reason=None,
        outcome="success",
        status=200,
        ambiguous=False,
        error=None,
        response_excerpt=None,
        retry_after_seconds=None,
        key_ids=(),
        payload_sha256=b"\0" * 32,
        started_at=datetime.now(UTC),
        duration_seconds=0.1,
        leased_at=datetime.now(UTC),
        sign="works",
        slows=False,
        pause_seconds=None,
    )
    return replace(success, **changes)


def retried(claimed: Claimed, *, delay_seconds: float = 0.0, **changes: Any) -> Settlement:
    """A failure of that claim that is to be tried again."""
    failure: dict[str, Any] = {
        "state": "pending",
        "delay_seconds": delay_seconds,
        "outcome": "server_error",
        "status": 500,
    }
    return settlement(
        claimed.delivery_id, claimed.attempt, leased_at=claimed.leased_at, **{**failure, "sign": "fails", **changes}
    )
