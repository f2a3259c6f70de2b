"""Spans of attempts: those that were asked for, with the ids that the receiver was sent."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pipeline.core.classify import Failure
from pipeline.core.tracing import traceparent_of
from pipeline.delivery.sender import Answer, NoAnswer
from pipeline.delivery.settling import Attempt, settlement_of
from pipeline.delivery.spans import AttemptSpans, NoSpans, open_spans
from pipeline.ledger.deliveries import Claimed
from tests.unit.test_delivery_settling import STARTED, make_destination

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(result, traceparent):
    headers = {} if traceparent is None else {"traceparent": traceparent}
    claimed = Claimed(
        delivery_id="dlv_1",
        destination_id="d",
        attempt=2,
        leased_at=STARTED,
        event_id="e",
        event_type="t",
        content_type="text/plain",
        headers=headers,
        payload_sha256=b"\1" * 32,
        payload=None,
        unauthorized=0,
        age_seconds=1.0,
        lease_seconds=35.0,
    )
    attempt = Attempt(claimed, 7, ("key_1",), STARTED, 0.25, result)
    destination = make_destination()
    settlement = settlement_of(attempt, destination, retry_after_seconds_max=60.0, draw=lambda: 0.5)
    exporter = InMemorySpanExporter()
    spans = AttemptSpans(SimpleSpanProcessor(exporter))
    spans.ended(destination, attempt, settlement)
    return exporter.get_finished_spans()


def test_a_sampled_event_has_a_span_under_its_own_with_the_id_that_was_sent():
    given = f"00-{TRACE}-{PARENT}-01"
    (span,) = spans_of(Answer(200, [], b""), given)
    sent = traceparent_of(given, event_id="e", delivery_id="dlv_1", attempt=2)
    assert sent == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.end_time - span.start_time == 250_000_000
    assert span.attributes["outrider.delivery_id"] == "dlv_1"
    assert span.attributes["http.response.status_code"] == 200
    assert span.status.status_code is StatusCode.UNSET


def test_a_failure_is_an_error_with_its_outcome():
    (span,) = spans_of(NoAnswer(Failure.CONNECT, False, "refused"), f"00-{TRACE}-{PARENT}-01")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "connect_failed")
    assert "http.response.status_code" not in span.attributes


@pytest.mark.parametrize("traceparent", [None, f"00-{TRACE}-{PARENT}-00", "garbage"])
def test_what_nobody_samples_has_none(traceparent):
    assert spans_of(Answer(200, [], b""), traceparent) == ()


def test_without_an_endpoint_there_are_none(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert isinstance(open_spans(), NoSpans)
