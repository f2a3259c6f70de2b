"""What the API counts, for ``/metrics``. Labels are bounded: operations, statuses and outcomes, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("outrider_api_requests_total", "Requests by operation and status.", ["operation", "status"])
REQUEST_SECONDS = Histogram(
    "outrider_api_request_seconds",
    "From the request's head to its answer, by operation.",
    ["operation"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
IN_FLIGHT = Gauge("outrider_api_in_flight", "Requests that have no answer yet.")
BUFFERED_BYTES = Gauge("outrider_api_buffered_bytes", "Bytes of request bodies in memory.")
EVENTS = Counter("outrider_api_events_total", "Events by what became of them.", ["outcome"])
COMMIT_EVENTS = Histogram(
    "outrider_api_commit_events",
    "Events in one group commit.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200),
)
COMMIT_SECONDS = Histogram(
    "outrider_api_commit_seconds",
    "Duration of one group commit.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
