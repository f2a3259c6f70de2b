"""The report: figures of a run, and what the checks found. Pure: facts in, report out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from pipeline.demo.checks import Finding, find_all
from pipeline.demo.facts import Facts, Kill
from pipeline.demo.receipts import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Nearest-rank percentiles in milliseconds; None without a sample."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationFigures:
    """One destination: the ledger's states on one side, what its receiver saw on the other."""

    destination_id: str
    behaviour: str
    admitted: int
    succeeded: int
    dead: int
    waiting: int
    distinct: int
    repeats: int
    effects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures. Counts are of deliveries, unless they say otherwise."""

    events: int
    """Events whose transaction committed."""
    admitted: int
    """Deliveries that the application saw committed: one per event and destination."""
    succeeded: int
    """In this state in the ledger."""
    dead: int
    """In this state in the ledger."""
    waiting: int
    """In any other state in the ledger, with a time at which the reconciler looks."""
    attempts: int
    """Attempts on record in the ledger."""
    lease_expired: int
    """Attempts among them that nobody settled in time: their worker was killed."""
    late: int
    """Results among them that came after the attempt was no longer current, and so changed nothing."""
    receiver_distinct: int
    """Pairs of destination and webhook-id that arrived with a valid signature."""
    receiver_repeats: int
    """Further valid requests for such a pair: retries, and redelivery after a kill."""
    receiver_effects: int
    """Pairs that a receiver took over. The repeats among the requests made no second one."""
    lost: int
    """Admitted and not in the ledger, or succeeded there and never taken over by the receiver."""
    identity_changes: int
    """Ids at a receiver that were not admitted for it, keys unlike their id, business keys under two ids."""
    body_mismatches: int
    """Requests, dispatches, ledger rows and attempts with other bytes than those admitted."""
    rolled_back: int
    """Events whose transaction was rolled back on purpose."""
    rolled_back_seen: int
    """Places where one of them was seen: ledger, either topic, a receiver, the business table."""
    readmitted: int
    """Deliveries whose event was admitted again on purpose."""
    duplicates_admitted: int
    """Those among them that admit called new."""
    invalid_signatures: int
    """Requests that did not verify."""
    dispatches: int
    """Records in the dispatch topic, each of which must be one outbox row."""
    dispatch_reasons: dict[str, int]
    """How many of them for which reason. `lost` ones were handed over again because no worker claimed them in time."""
    quarantined: int
    """Records that a worker or the connector put into the quarantine topic."""
    kills: list[Kill]
    commit_to_receipt_ms: Percentiles
    """From the return of the commit to the first receipt, over healthy destinations and without deliver_at.

    Elsewhere the receiver or the schedule decides how long it takes. Outages by the kills are in it.
    """
    commit_to_receipt_ms_before_kills: Percentiles
    """The same over what was received before the first kill."""
    elapsed_seconds: float
    """Of the whole demo, with the start of the stack."""
    destinations: list[DestinationFigures]
    findings: list[Finding]
    """Empty when everything is exact."""

    @property
    def is_exact(self) -> bool:
        return not self.findings


def compare(facts: Facts) -> Report:
    """Compare all witnesses, and count."""
    findings = find_all(facts)
    states = Counter(delivery.state for delivery in facts.deliveries)
    waiting = states.total() - states["succeeded"] - states["dead"]
    admitted = len({admission.delivery_id for admission in facts.admissions})
    kinds = Counter(finding.kind for finding in findings)
    valid = [receipt for receipt in facts.receipts if receipt.signature != "invalid"]
    distinct = len({(receipt.destination_id, receipt.webhook_id) for receipt in valid})
    first_kill = min((kill.killed_at for kill in facts.kills), default=None)
    results = Counter(attempt.result for attempt in facts.attempts)
    return Report(
        events=len({admission.event_id for admission in facts.admissions}),
        admitted=admitted,
        succeeded=states["succeeded"],
        dead=states["dead"],
        waiting=waiting,
        attempts=len(facts.attempts),
        lease_expired=results["lease_expired"],
        late=results["late"],
        receiver_distinct=distinct,
        receiver_repeats=len(valid) - distinct,
        receiver_effects=sum(receipt.is_effect for receipt in valid),
        lost=kinds["lost"],
        identity_changes=kinds["identity_change"],
        body_mismatches=kinds["body_mismatch"],
        rolled_back=len(facts.rolled_back),
        rolled_back_seen=kinds["rolled_back_seen"],
        readmitted=len(facts.readmissions),
        duplicates_admitted=kinds["duplicate_admitted"],
        invalid_signatures=len(facts.receipts) - len(valid),
        dispatches=len(facts.dispatches),
        dispatch_reasons=dict(Counter(row.reason for row in facts.outbox)),
        quarantined=len(facts.quarantined),
        kills=list(facts.kills),
        commit_to_receipt_ms=_percentiles(latency for _, latency in _latencies(facts)),
        commit_to_receipt_ms_before_kills=_percentiles(
            latency for at, latency in _latencies(facts) if first_kill is None or at < first_kill
        ),
        elapsed_seconds=round(facts.elapsed_seconds, 1),
        destinations=_destinations(facts),
        findings=findings,
    )


def _destinations(facts: Facts) -> list[DestinationFigures]:
    admitted = Counter(admission.destination_id for admission in facts.admissions)
    states = Counter((delivery.destination_id, delivery.state) for delivery in facts.deliveries)
    in_ledger = Counter(delivery.destination_id for delivery in facts.deliveries)
    valid = [receipt for receipt in facts.receipts if receipt.signature != "invalid"]
    requests = Counter(receipt.destination_id for receipt in valid)
    effects = Counter(receipt.destination_id for receipt in valid if receipt.is_effect)
    distinct = Counter(name for name, _ in {(receipt.destination_id, receipt.webhook_id) for receipt in valid})
    return [
        DestinationFigures(
            destination_id=name,
            behaviour=destination.behaviour,
            admitted=admitted[name],
            succeeded=states[name, "succeeded"],
            dead=states[name, "dead"],
            waiting=in_ledger[name] - states[name, "succeeded"] - states[name, "dead"],
            distinct=distinct[name],
            repeats=requests[name] - distinct[name],
            effects=effects[name],
        )
        for name, destination in facts.destinations.items()
    ]


def _latencies(facts: Facts) -> Iterator[tuple[float, float]]:
    """(time of first receipt, milliseconds since the commit) of each delivery that counts."""
    first: dict[str, Receipt] = {}
    for receipt in facts.receipts:
        if receipt.signature != "invalid":
            first.setdefault(receipt.webhook_id, receipt)
    for admission in facts.admissions:
        arrived = first.get(admission.delivery_id)
        if arrived is None or admission.is_scheduled:
            continue
        if facts.destinations[admission.destination_id].is_healthy:
            # A receipt may be noted before the application's thread gets to note its commit.
            yield arrived.received_at, max(0.0, arrived.received_at - admission.committed_at) * 1000


def _percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)

    def rank(fraction: float) -> float | None:
        return round(ordered[max(0, ceil(fraction * len(ordered)) - 1)], 1) if ordered else None

    return Percentiles(p50=rank(0.50), p95=rank(0.95), p99=rank(0.99))
