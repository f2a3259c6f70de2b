"""What passes over sources show to Prometheus. Labels are source ids, of which there are as many as files."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

PASSES = Counter(
    "outrider_source_passes",
    "Passes that ended, by what woke them and how they ended.",
    ["source", "woken_by", "result"],
)
ROWS = Counter(
    "outrider_source_rows",
    "Rows that were claimed, by what became of them: admitted, existing (a no-op), unsubscribed, refused.",
    ["source", "result"],
)
PASS_SECONDS = Histogram(
    "outrider_source_pass_seconds",
    "Duration of a pass.",
    ["source"],
    buckets=(0.01, 0.05, 0.2, 1, 5, 20, 60, 300),
)
PAGE_SECONDS = Histogram(
    "outrider_source_claim_to_commit_seconds",
    "From the claim of a page to the commit that admits it.",
    ["source"],
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
OLDEST_DUE_SECONDS = Gauge(
    "outrider_source_oldest_due_seconds",
    "Age of the earliest row that is due in shards of this mode, by the database's clock; 0 where none is due.",
    ["source", "mode"],
)
REFUSED = Gauge("outrider_source_refused", "Rows that are refused, and that stay due.", ["source"])
FAILURES = Gauge(
    "outrider_source_failures", "Passes and looks in a row that failed; 0 once one has ended well.", ["source"]
)
UNKNOWN_WAKEUPS = Counter("outrider_source_unknown_wakeups", "Records of the wake-up topic that name no source.")
