"""From what happened on the wire to what is written into the ledger. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.core.classify import (
    NO_RULES,
    Classification,
    Outcome,
    Rules,
    Verdict,
    classify_failure,
    classify_status,
)
from pipeline.core.lifecycle import Actor, State, check_transition
from pipeline.core.receiver_health import sign_of, slows
from pipeline.core.retry import Exhausted, RetryIn, RetryPolicy, decide_retry
from pipeline.core.retry_after import parse_retry_after
from pipeline.delivery.sender import Answer, NoAnswer
from pipeline.ledger.deliveries import Claimed, Settlement
from pipeline.ledger.destinations import Destination

KEPT_VALUE_LENGTH_MAX = 256
KEPT_HEADERS = frozenset(
    (
        *("content-type", "content-length", "content-encoding", "transfer-encoding", "date", "server", "via"),
        *("retry-after", "location", "www-authenticate", "allow", "connection", "upgrade"),
        *("x-request-id", "request-id", "x-correlation-id", "traceparent", "cf-ray", "x-amzn-requestid"),
    )
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request under one claim. Times: ``started_at`` aware, ``duration_seconds`` by a clock that runs evenly."""

    claimed: Claimed
    dispatch_seq: int
    key_ids: tuple[str, ...]
    started_at: datetime
    duration_seconds: float
    result: Answer | NoAnswer


def classify(result: Answer | NoAnswer, rules: Rules = NO_RULES) -> Classification:
    """The table's line for this result, or what the destination's rules make of it."""
    if isinstance(result, Answer):
        return classify_status(result.status, rules)
    return classify_failure(result.failure, request_begun=result.request_begun, rules=rules)


def settlement_of(
    attempt: Attempt, destination: Destination, *, retry_after_seconds_max: float, draw: Callable[[], float]
) -> Settlement:
    """What the ledger is to record; ``draw`` gives an even number in [0, 1)."""
    claimed, result = attempt.claimed, attempt.result
    line = classify(result, destination.answer_rules)
    answer = result if isinstance(result, Answer) else None
    retry_after = parse_retry_after(
        None if answer is None else answer.header("retry-after"),
        now=attempt.started_at,
        seconds_max=retry_after_seconds_max,
    )
    retry = decide_retry(
        retry_policy(destination),
        attempt=claimed.attempt,
        age_seconds=claimed.age_seconds + attempt.duration_seconds,
        retry_after_seconds=retry_after,
        draw=draw,
        unauthorized_before=claimed.unauthorized if line.outcome is Outcome.UNAUTHORIZED and not line.by_rule else None,
    )
    state, delay_seconds = _next_state(line, retry)
    check_transition(State.LEASED, state, Actor.WORKER)
    return Settlement(
        delivery_id=claimed.delivery_id,
        attempt=claimed.attempt,
        dispatch_seq=attempt.dispatch_seq,
        state=state.value,  # type: ignore[arg-type]  # the check has left these three
        delay_seconds=delay_seconds,
        waiting_reason=line.waiting_reason if state is State.PENDING else None,
        outcome=line.outcome.value,
        status=None if answer is None else answer.status,
        ambiguous=line.ambiguous,
        error=_error_text(line, retry, result),
        response_excerpt=None if answer is None else answer.excerpt,
        retry_after_seconds=retry_after,
        key_ids=attempt.key_ids,
        payload_sha256=claimed.payload_sha256,
        started_at=attempt.started_at,
        duration_seconds=attempt.duration_seconds,
        leased_at=claimed.leased_at,
        sign=sign_of(line.outcome, None if answer is None else answer.status),
        slows=slows(line.outcome),
        pause_seconds=retry_after if line.verdict is Verdict.RETRY else None,
        response_headers=None if answer is None else kept_headers(answer.headers),
        dns_seconds=result.timings.dns,
        connect_seconds=result.timings.connect,
        tls_seconds=result.timings.tls,
        first_byte_seconds=result.timings.first_byte,
    )


def kept_headers(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Those of an answer that help to understand it, bounded; of a name that comes again, the first value."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if name in KEPT_HEADERS and name not in kept:
            kept[name] = value[:KEPT_VALUE_LENGTH_MAX].replace("\0", "\\0")
    return kept


def retry_policy(destination: Destination) -> RetryPolicy:
    """The destination's schedule in core's terms."""
    return RetryPolicy(
        first_delay_seconds=destination.retry_first_delay_seconds,
        factor=destination.retry_factor,
        max_delay_seconds=destination.retry_max_delay_seconds,
        max_attempts=destination.retry_max_attempts,
        max_age_seconds=destination.retry_max_age_seconds,
        delays_seconds=destination.retry_delays_seconds,
        unauthorized_delays_seconds=destination.unauthorized_delays_seconds,
    )


def _next_state(line: Classification, retry: RetryIn | Exhausted) -> tuple[State, float | None]:
    """The state, and for pending the delay."""
    if line.verdict is Verdict.SUCCESS:
        return State.SUCCEEDED, None
    if line.verdict is Verdict.RETRY and isinstance(retry, RetryIn):
        return State.PENDING, retry.delay_seconds
    return State.DEAD, None


def _error_text(line: Classification, retry: RetryIn | Exhausted, result: Answer | NoAnswer) -> str | None:
    """What went wrong, and why there is no further attempt where the receiver alone would not have ended it."""
    parts = [result.error] if isinstance(result, NoAnswer) else []
    if line.verdict is Verdict.RETRY and isinstance(retry, Exhausted):
        parts.append(retry.value)
    return "; ".join(parts) or None
