"""Attempts as OpenTelemetry spans, where the extra ``otel`` is installed and OTEL_EXPORTER_OTLP_ENDPOINT is set.

A span has the ids of the ``traceparent`` that the receiver was sent, so what the receiver reports hangs below it. Only
events that were admitted with a sampled trace have spans: whoever began the trace has decided that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog

from pipeline.core.tracing import traceparent_of
from pipeline.delivery.sender import Answer
from pipeline.delivery.settling import Attempt
from pipeline.ledger.deliveries import Settlement
from pipeline.ledger.destinations import Destination

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

log = structlog.get_logger(__name__)

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SAMPLED = 1
NANOSECONDS = 1_000_000_000


class Spans(Protocol):
    """Where ended attempts are told. ``ended`` is quick and does no I/O."""

    def ended(self, destination: Destination, attempt: Attempt, settlement: Settlement) -> None: ...
    def close(self) -> None: ...


class NoSpans:
    """Nobody asked for them."""

    def ended(self, destination: Destination, attempt: Attempt, settlement: Settlement) -> None:
        pass

    def close(self) -> None:
        pass


class AttemptSpans:
    """Makes a span of each attempt whose trace is sampled, and gives it to ``processor``."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource

        self._processor = processor
        self._resource = Resource.create({"service.name": "outrider-worker"})

    def ended(self, destination: Destination, attempt: Attempt, settlement: Settlement) -> None:
        claimed = attempt.claimed
        given = claimed.headers.get("traceparent")
        if given is None:
            return
        _, trace, span, flags = traceparent_of(
            given, event_id=claimed.event_id, delivery_id=claimed.delivery_id, attempt=claimed.attempt
        ).split("-")
        if not int(flags, 16) & SAMPLED:
            return
        self._processor.on_end(self._span(destination, attempt, settlement, trace=int(trace, 16), span=int(span, 16)))

    def close(self) -> None:
        """Send what is left, and end."""
        self._processor.shutdown()

    def _span(self, destination: Destination, attempt: Attempt, settlement: Settlement, *, trace: int, span: int):  # type: ignore[no-untyped-def]
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        claimed = attempt.claimed
        parent = int(claimed.headers["traceparent"].split("-")[2], 16)
        flags = TraceFlags(SAMPLED)
        started = int(attempt.started_at.timestamp() * NANOSECONDS)
        attributes: dict[str, str | int | bool] = {
            "http.request.method": "POST",
            "server.address": urlsplit(destination.url).hostname or "",
            "outrider.delivery_id": claimed.delivery_id,
            "outrider.destination_id": destination.destination_id,
            "outrider.attempt": claimed.attempt,
            "outrider.outcome": settlement.outcome,
        }
        if isinstance(attempt.result, Answer):
            attributes["http.response.status_code"] = attempt.result.status
        is_well = settlement.state == "succeeded"
        return ReadableSpan(
            name="POST",
            context=SpanContext(trace, span, is_remote=False, trace_flags=flags),
            parent=SpanContext(trace, parent, is_remote=True, trace_flags=flags),
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.UNSET) if is_well else Status(StatusCode.ERROR, settlement.outcome),
            start_time=started,
            end_time=started + int(attempt.duration_seconds * NANOSECONDS),
        )


def open_spans() -> Spans:
    """As the environment asks; what it asks for and is not installed is one line in the log, and no spans."""
    if not any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return NoSpans()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "no spans: OpenTelemetry is not installed", check=ENDPOINT_VARIABLES[0], mend="pip install outrider[otel]"
        )
        return NoSpans()
    return AttemptSpans(BatchSpanProcessor(OTLPSpanExporter()))
