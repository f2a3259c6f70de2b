"""A delivery's request, from the destination's settings and the event: the same for the worker and for ``destination test``."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.signing import sign
from pipeline.core.tracing import traceparent_of
from pipeline.delivery.request_head import fixed_head, request_head
from pipeline.delivery.sender import Request
from pipeline.delivery.tls import SYSTEM_TRUST, TlsSettings
from pipeline.ledger.destinations import NO_CREDENTIAL, Credential, Destination


def outgoing_request(
    destination: Destination,
    *,
    delivery_id: str,
    event_id: str,
    attempt: int,
    content_type: str,
    event_headers: Mapping[str, str],
    body: bytes,
    timestamp: int,
    timeout_seconds: float,
) -> Request:
    """``timestamp``: unix time of this attempt, in seconds. Raises ValueError for what cannot be put into a header."""
    head = request_head(
        fixed_head(destination.url, destination.static_headers, destination.credential.authorization),
        delivery_id=delivery_id,
        attempt=attempt,
        content_type=content_type,
        event_headers=event_headers,
        signature=sign([secret.secret for secret in destination.secrets], delivery_id, timestamp, body),
        timestamp=timestamp,
        traceparent=traceparent_of(
            event_headers.get("traceparent"), event_id=event_id, delivery_id=delivery_id, attempt=attempt
        ),
        body_bytes=len(body),
    )
    return Request(
        url=destination.url,
        head=head,
        body=body,
        timeout_seconds=timeout_seconds,
        allowed_networks=destination.allowed_networks,
        tls=_tls_settings(destination.credential),
    )


def _tls_settings(credential: Credential) -> TlsSettings:
    if credential is NO_CREDENTIAL:
        return SYSTEM_TRUST
    return TlsSettings(credential.ca, credential.client_certificate, credential.client_key)
