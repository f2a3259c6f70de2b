"""One signed request to a receiver, outside the ledger: whether it answers, and whether it takes our signature."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from uuid import uuid4

from pipeline.core.classify import Verdict
from pipeline.core.ids import ping_identity
from pipeline.delivery.connections import Timings
from pipeline.delivery.outgoing import outgoing_request
from pipeline.delivery.sender import Answer, Sender
from pipeline.delivery.settling import classify, kept_headers
from pipeline.delivery.targets import target_rules
from pipeline.ledger.destinations import load_destinations
from pipeline.ledger.operator import NoSuchDestinationError
from pipeline.ledger.pool import open_pool
from pipeline.settings import Settings

EVENT_TYPE = "outrider.ping"


class PingError(Exception):
    """The destination's settings do not let anything be sent; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingOutcome:
    url: str
    webhook_id: str
    outcome: str
    """The class that a delivery's attempt would have."""
    status: int | None
    error: str | None
    answer: str | None
    """The beginning of the answer's body."""
    headers: dict[str, str]
    """Those of the answer that an attempt keeps."""
    timings: Timings
    seconds: float
    is_success: bool


async def ping(settings: Settings, destination_id: str) -> PingOutcome:
    """POST ``{"type": "outrider.ping", …}`` as a delivery would be, once. Raises NoSuchDestinationError or PingError."""
    async with open_pool(settings.postgres_conninfo, 1, "destination test") as pool:
        destinations = await load_destinations(pool, [destination_id], settings.vault)
    destination = destinations.get(destination_id)
    if destination is None:
        raise NoSuchDestinationError(destination_id)
    if destination.problem is not None:
        raise PingError(destination.problem)
    webhook_id = ping_identity(uuid4())
    now = int(time.time())
    body = json.dumps({"type": EVENT_TYPE, "destination": destination_id, "timestamp": now}).encode()
    request = outgoing_request(
        destination,
        delivery_id=webhook_id,
        event_id=webhook_id,
        attempt=1,
        content_type="application/json",
        event_headers={},
        body=body,
        timestamp=now,
        timeout_seconds=destination.timeout_seconds,
    )
    started = time.perf_counter()
    async with Sender(concurrency=1, rules=target_rules(settings)) as sender:
        answer = await sender.send(request)
    seconds = round(time.perf_counter() - started, 3)
    classification = classify(answer, destination.answer_rules)
    if isinstance(answer, Answer):
        status, error, text = answer.status, None, answer.excerpt.decode(errors="replace")
        headers = kept_headers(answer.headers)
    else:
        status, error, text, headers = None, answer.error, None, {}
    return PingOutcome(
        url=destination.url,
        webhook_id=webhook_id,
        outcome=classification.outcome,
        status=status,
        error=error,
        answer=text or None,
        headers=headers,
        timings=answer.timings,
        seconds=seconds,
        is_success=classification.verdict is Verdict.SUCCESS,
    )
