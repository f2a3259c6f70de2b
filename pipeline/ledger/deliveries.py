"""The worker's transitions of deliveries: claim, settle, park. Many deliveries in one statement each.

Every call is one transaction and one round trip. What it changes it changes on a condition that the statement itself
carries, so repeating a call, or making it from two workers at once, moves nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec
from psycopg.rows import dict_row

from pipeline.ledger.pool import Pool
from pipeline.ledger.queries import query

Refusal = Literal["stale", "early", "disabled", "paused", "throttled", "open", "paced", "busy"]

# Times that a message of a delivery may be refused, and the wait after the first; it doubles.
REFUSALS_MAX = 5
REFUSED_DELAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    delivery_id: str
    dispatch_seq: int
    body_sha256: bytes
    """SHA-256 of the message's value."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The lease is ours under ``attempt``, and one start has been counted against the destination's limits."""

    delivery_id: str
    destination_id: str
    attempt: int
    leased_at: datetime
    event_id: str
    event_type: str
    content_type: str
    headers: dict[str, str]
    payload_sha256: bytes
    payload: bytes | None
    """The admitted bytes, only where the message's body differs from them."""
    unauthorized: int
    """Answers 401 and 403 so far."""
    age_seconds: float
    """Since admission, or since ``deliver_at`` where that is later."""
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing changed.

    ``stale``: the delivery is not enqueued, or its ``dispatch_seq`` is past the message's. ``early``: there is no such
    delivery, or its ``dispatch_seq`` is below the message's; PostgreSQL streams a commit a moment before other sessions
    see it, so ask again before calling it unknown. ``disabled``, ``paused``: the destination is, by an operator. ``throttled``: it asked for
    a pause of ``wait_seconds`` more. ``open``: its breaker is, for about ``wait_seconds``, or another delivery probes.
    ``paced``: its start rate has no token for ``wait_seconds``. ``busy``: its concurrency is used up, over all workers, or
    another worker claims for it at this moment.
    """

    delivery_id: str
    verdict: Refusal
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Settlement:
    delivery_id: str
    attempt: int
    dispatch_seq: int
    state: Literal["succeeded", "pending", "dead"]
    delay_seconds: float | None
    """For pending: time from now to the next attempt."""
    waiting_reason: str | None
    outcome: str
    status: int | None
    ambiguous: bool
    error: str | None
    response_excerpt: bytes | None
    retry_after_seconds: float | None
    key_ids: Sequence[str]
    payload_sha256: bytes
    started_at: datetime
    duration_seconds: float
    leased_at: datetime
    sign: Literal["works", "fails"] | None
    """What the result says of the receiver as a whole."""
    slows: bool
    """Whether the destination's rate is to be taken back."""
    pause_seconds: float | None
    """How long the receiver asked to be left alone, for all of its deliveries."""
    response_headers: dict[str, str] | None = None
    dns_seconds: float | None = None
    connect_seconds: float | None = None
    tls_seconds: float | None = None
    first_byte_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """When failures in a row open a breaker, and how long it stays open: longer with each opening in a row."""

    failures: int
    open_seconds_first: float
    open_seconds_max: float


@dataclass(frozen=True, slots=True)
class Parking:
    delivery_id: str
    dispatch_seq: int
    reason: str
    delay_seconds: float


async def claim(
    pool: Pool, worker_id: str, requests: Sequence[ClaimRequest], *, lease_margin_seconds: float
) -> list[Claimed | Refused]:
    """Take leases, in the order of the requests; the answers come in that order too.

    A lease lasts the destination's time-out and the margin. Raises psycopg.Error; then nothing was claimed, or the
    commit's answer was lost: the leases of that call run out and the reconciler dispatches again.
    """
    parameters = {
        "worker_id": worker_id,
        "lease_margin_seconds": lease_margin_seconds,
        "delivery_ids": [r.delivery_id for r in requests],
        "dispatch_seqs": [r.dispatch_seq for r in requests],
        "body_sha256s": [r.body_sha256 for r in requests],
    }
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        # What is sent in one pipeline without a transaction of its own is one: it is committed at the pipeline's end.
        async with connection.pipeline():
            await connection.execute(query("deliveries", "lock_pace"), {"delivery_ids": parameters["delivery_ids"]})
            await cursor.execute(query("deliveries", "claim"), parameters)
        rows = await cursor.fetchall()
    # A request that repeats another of the same call has no row: it is stale by the time the first one is claimed.
    answers: list[Claimed | Refused] = [Refused(r.delivery_id, "stale") for r in requests]
    for row in rows:
        place = row["place"] - 1
        answers[place] = _answer(requests[place].delivery_id, row)
    return answers


def _answer(delivery_id: str, row: dict[str, Any]) -> Claimed | Refused:
    if row["verdict"] != "claimed":
        tells_wait = row["verdict"] in ("paced", "throttled", "open")
        return Refused(delivery_id, row["verdict"], (row["wait_seconds"] or 0.0) if tells_wait else 0.0)
    return Claimed(
        delivery_id=delivery_id,
        destination_id=row["destination_id"],
        attempt=row["attempt"],
        leased_at=row["leased_at"],
        event_id=row["event_id"],
        event_type=row["event_type"],
        content_type=row["content_type"],
        headers=row["headers"],
        payload_sha256=row["payload_sha256"],
        payload=row["payload"],
        unauthorized=row["unauthorized"],
        age_seconds=row["age_seconds"],
        lease_seconds=float(row["lease_seconds"]),
    )


async def settle(pool: Pool, worker_id: str, settlements: Sequence[Settlement], breaker: BreakerLimits) -> list[bool]:
    """Write results, their attempt rows, and what they say of their receivers; for each, whether it counted.

    False: its attempt was no longer current, so it is on record as late and the delivery is untouched. Raises
    psycopg.Error; the call may be repeated as it is (a result that was written already is then recorded as late).
    """
    parameters = {
        "worker_id": worker_id,
        "delivery_ids": [s.delivery_id for s in settlements],
        "attempts": [s.attempt for s in settlements],
        "dispatch_seqs": [s.dispatch_seq for s in settlements],
        "states": [s.state for s in settlements],
        "delays_seconds": [s.delay_seconds for s in settlements],
        "waiting_reasons": [_text(s.waiting_reason) for s in settlements],
        "outcomes": [s.outcome for s in settlements],
        "statuses": [s.status for s in settlements],
        "ambiguous": [s.ambiguous for s in settlements],
        "errors": [_text(s.error) for s in settlements],
        "response_excerpts": [s.response_excerpt for s in settlements],
        "retry_afters_seconds": [s.retry_after_seconds for s in settlements],
        "key_ids": [" ".join(s.key_ids) for s in settlements],
        "payload_sha256s": [s.payload_sha256 for s in settlements],
        "started_at": [s.started_at for s in settlements],
        "durations_seconds": [s.duration_seconds for s in settlements],
        "response_headers": [None if s.response_headers is None else _json(s.response_headers) for s in settlements],
        "dns_seconds": [s.dns_seconds for s in settlements],
        "connect_seconds": [s.connect_seconds for s in settlements],
        "tls_seconds": [s.tls_seconds for s in settlements],
        "first_byte_seconds": [s.first_byte_seconds for s in settlements],
        "leased_at": [s.leased_at for s in settlements],
        "signs": [s.sign for s in settlements],
        "slows": [s.slows for s in settlements],
        "pauses_seconds": [s.pause_seconds for s in settlements],
        "breaker_failures": breaker.failures,
        "breaker_open_seconds_first": breaker.open_seconds_first,
        "breaker_open_seconds_max": breaker.open_seconds_max,
    }
    async with pool.connection() as connection:
        cursor = await connection.execute(query("deliveries", "settle"), parameters)
        counted: dict[int, bool] = dict(await cursor.fetchall())
    return [counted[place] for place in range(1, len(settlements) + 1)]


async def park(pool: Pool, parkings: Sequence[Parking]) -> None:
    """Give deliveries back to the ledger without an attempt; those that moved on meanwhile stay as they are."""
    async with pool.connection() as connection:
        await connection.execute(
            query("deliveries", "park"),
            {
                "delivery_ids": [p.delivery_id for p in parkings],
                "dispatch_seqs": [p.dispatch_seq for p in parkings],
                "reasons": [p.reason for p in parkings],
                "delays_seconds": [p.delay_seconds for p in parkings],
            },
        )


async def disable_gone(
    pool: Pool, worker_id: str, *, destination_id: str, url: str, delivery_id: str, attempt: int, reason: str
) -> bool:
    """Disable a destination whose receiver says that it is gone, on record as a run; whether that changed anything.

    Nothing changes where the attempt is no longer current, or the destination has another URL or is disabled by now.
    """
    async with pool.connection() as connection:
        cursor = await connection.execute(
            query("deliveries", "disable_gone"),
            {
                "destination_id": destination_id,
                "url": url,
                "delivery_id": delivery_id,
                "attempt": attempt,
                "worker_id": worker_id,
                "reason": reason,
            },
        )
        return await cursor.fetchone() is not None


async def refuse(pool: Pool, delivery_id: str, dispatch_seq: int, error: str) -> str | None:
    """Give a delivery back whose current message could not be handled; its new state, or None where nothing moved.

    After REFUSALS_MAX of them it is dead, with the error: the next message would be the same.
    """
    async with pool.connection() as connection:
        cursor = await connection.execute(
            query("deliveries", "refuse"),
            {
                "delivery_id": delivery_id,
                "dispatch_seq": dispatch_seq,
                "error": _text(error),
                "refusals_max": REFUSALS_MAX,
                "delay_seconds": REFUSED_DELAY_SECONDS,
            },
        )
        row = await cursor.fetchone()
    return None if row is None else str(row[0])


def _json(headers: dict[str, str]) -> str:
    return msgspec.json.encode(headers).decode()


def _text(value: str | None) -> str | None:
    """PostgreSQL's text holds no NUL, and a receiver may send one."""
    return None if value is None else value.replace("\0", "\\0")
