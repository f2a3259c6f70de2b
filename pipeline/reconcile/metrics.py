"""What the reconciler shows to Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

PASSES = Counter(
    "outrider_reconciler_passes", "Passes that ended, by what woke them and how they ended.", ["woken_by", "result"]
)
MOVED = Counter("outrider_reconciler_moved", "Deliveries handed to Kafka again.", ["reason"])
PASS_SECONDS = Histogram(
    "outrider_reconciler_pass_seconds",
    "Duration of a pass.",
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
)
OLDEST_DUE_SECONDS = Gauge(
    "outrider_reconciler_oldest_due_seconds",
    "Age of the oldest due delivery to an enabled destination; 0 where none is due.",
)
WAITING = Gauge(
    "outrider_reconciler_waiting",
    "Deliveries that are not terminal, by what they wait for; counted up to a bound.",
    ["reason"],
)
PAYLOADS_REMOVED = Counter("outrider_reconciler_payloads_removed", "Events that lost their payload to retention.")
PARTITIONS = Counter("outrider_reconciler_partitions", "Partitions made and dropped.", ["action"])
