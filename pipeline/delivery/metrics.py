"""What the worker counts, for ``/metrics``. Labels are bounded: outcome classes, reasons and verdicts, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from pipeline.delivery.connections import Timings

ATTEMPTS = Counter("outrider_worker_attempts_total", "Requests that ended, by outcome class.", ["outcome"])
AMBIGUOUS = Counter(
    "outrider_worker_ambiguous_total", "Attempts that the receiver may have applied without our seeing it."
)
ATTEMPT_SECONDS = Histogram(
    "outrider_worker_attempt_seconds",
    "Duration of a request.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30),
)
UNAUTHORIZED = Counter(
    "outrider_worker_unauthorized_total", "Answers 401 and 403: the receiver rejects our authentication."
)
PHASE_SECONDS = Histogram(
    "outrider_worker_phase_seconds",
    "Parts of a request, where they happened: dns, connect, tls, and first_byte after the request.",
    ["phase"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30),
)
STARTS = Counter("outrider_worker_starts_total", "Requests that were started.")
REFUSED = Counter("outrider_worker_claims_refused_total", "Claims that the ledger refused, by verdict.", ["verdict"])
PARKED = Counter("outrider_worker_parked_total", "Deliveries given back to the ledger, by reason.", ["reason"])
DEAD = Counter(
    "outrider_worker_dead_total", "Deliveries that a result ended for good, by its outcome class.", ["outcome"]
)
LATE = Counter("outrider_worker_late_results_total", "Results whose attempt was no longer current.")
QUARANTINED = Counter("outrider_worker_quarantined_total", "Messages that could not be understood.")
REFUSED_TO_DEATH = Counter(
    "outrider_worker_refused_to_death_total", "Deliveries that ended because none of their messages could be handled."
)
QUARANTINE_NOT_STORED = Counter(
    "outrider_worker_quarantine_not_stored_total", "Messages that the quarantine topic did not take; the log has each."
)
IN_FLIGHT = Gauge("outrider_worker_in_flight", "Starts that have not ended.")
WAITING = Gauge("outrider_worker_waiting", "Deliveries that wait in lanes.")
UNSETTLED = Gauge("outrider_worker_unsettled_messages", "Messages that were fetched and are not done.")
LAG = Gauge("outrider_worker_lag_offsets", "Offsets between what is done and the ends of this worker's partitions.")
LANES = Gauge("outrider_worker_lanes", "Destinations that have a lane.")
BATCH_ROWS = Histogram(
    "outrider_worker_statement_rows",
    "Rows in one statement, by what it does.",
    ["work"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
)
BATCH_SECONDS = Histogram(
    "outrider_worker_statement_seconds",
    "Duration of one statement, by what it does.",
    ["work"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)

_PHASES = tuple((phase, PHASE_SECONDS.labels(phase)) for phase in ("dns", "connect", "tls", "first_byte"))


def observe_phases(timings: Timings) -> None:
    """Count those parts of a request that happened."""
    for phase, histogram in _PHASES:
        seconds = getattr(timings, phase)
        if seconds is not None:
            histogram.observe(seconds)
