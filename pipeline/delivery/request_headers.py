"""Headers of a delivery's request: the event's own, the identity, and the signature of this attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from pipeline.core.signing import sign

USER_AGENT = f"outrider/{metadata.version('outrider')}"


def request_headers(
    *,
    delivery_id: str,
    attempt: int,
    content_type: str,
    event_headers: Mapping[str, str],
    secrets: Sequence[str],
    timestamp: int,
    body: bytes,
) -> dict[str, str]:
    """All headers but those of the connection. ``timestamp`` is the unix time of this attempt, in seconds.

    Admission refuses event headers that carry one of the other names, so none can be overridden.
    """
    return {
        **event_headers,
        "content-type": content_type,
        "user-agent": USER_AGENT,
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secrets, delivery_id, timestamp, body),
        "idempotency-key": delivery_id,
        "outrider-attempt": str(attempt),
        # An answer that is not compressed cannot grow when it is read.
        "accept-encoding": "identity",
    }
