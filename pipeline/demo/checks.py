"""The checks of the reconciliation: every witness against every other, id by id. Pure, and total over any facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pipeline.demo.facts import Admission, Facts, LedgerAttempt, TopicRecord

TERMINAL = ("succeeded", "dead")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is off."""

    kind: str
    id: str
    """The delivery; the event, record or component where it is about one of those."""
    reason: str


def find_all(facts: Facts) -> list[Finding]:
    """Everything that is off; empty when all is exact."""
    return list(
        chain(
            _sum(facts),
            _ledger_against_admissions(facts),
            _states(facts),
            _receipts_against_admissions(facts),
            _effects(facts),
            _attempts(facts),
            _bodies(facts),
            _topic("dispatch", facts.dispatches, [row.message_id for row in facts.outbox]),
            _topic("attempts", facts.attempt_records, [attempt.attempt_id for attempt in facts.attempts]),
            _quarantined(facts),
            _rolled_back(facts),
            _readmissions(facts),
            _business_rows(facts),
            _processes(facts),
        )
    )


def _sum(facts: Facts) -> Iterator[Finding]:
    """Admitted = succeeded + dead + waiting."""
    admitted = len({admission.delivery_id for admission in facts.admissions})
    states = Counter(delivery.state for delivery in facts.deliveries)
    if admitted != states.total():
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        yield Finding("sum", "*", f"{admitted} were admitted, the ledger has {states.total()}: {counts}")


def _ledger_against_admissions(facts: Facts) -> Iterator[Finding]:
    """The same deliveries, for the same event and destination."""
    in_ledger = {delivery.delivery_id: delivery for delivery in facts.deliveries}
    admitted = _admissions(facts)
    for delivery_id, admission in admitted.items():
        delivery = in_ledger.get(delivery_id)
        if delivery is None:
            yield Finding("lost", delivery_id, f"committed for {admission.destination_id}, and not in the ledger")
        elif (delivery.event_id, delivery.destination_id) != (admission.event_id, admission.destination_id):
            yield Finding(
                "identity_change",
                delivery_id,
                f"admitted as {admission.event_id} for {admission.destination_id}, "
                f"in the ledger as {delivery.event_id} for {delivery.destination_id}",
            )
    rolled_back = {event.event_id for event in facts.rolled_back}
    for delivery in facts.deliveries:
        if delivery.delivery_id not in admitted and delivery.event_id not in rolled_back:
            yield Finding("unknown_delivery", delivery.delivery_id, "in the ledger, and never admitted")


def _states(facts: Facts) -> Iterator[Finding]:
    """Each delivery ended as its destination makes it end; none is left on the way."""
    for delivery in facts.deliveries:
        destination = facts.destinations.get(delivery.destination_id)
        if destination is None:
            continue  # nobody admitted it, and that is found elsewhere
        wanted = destination.settles
        if delivery.state == wanted:
            continue
        if delivery.state not in TERMINAL:
            if wanted is not None:
                why = f" ({delivery.waiting_reason})" if delivery.waiting_reason else ""
                reason = f"still {delivery.state}{why} at {delivery.destination_id} after {delivery.attempt} attempts"
                yield Finding("unsettled", delivery.delivery_id, reason)
        elif wanted is not None or delivery.state == "succeeded":
            reason = f"{delivery.state} at {delivery.destination_id}, where it should be {wanted or 'waiting or dead'}"
            yield Finding("wrong_end", delivery.delivery_id, reason)


def _receipts_against_admissions(facts: Facts) -> Iterator[Finding]:
    """Every request carried an identity that was admitted for this destination, and verified."""
    admitted = _admissions(facts)
    # A changed identity is reported once, however often it came.
    reported: set[tuple[str, str]] = set()
    for receipt in facts.receipts:
        if receipt.signature == "invalid":
            yield Finding("invalid_signature", receipt.webhook_id or "(none)", f"a request at {receipt.destination_id}")
            continue
        admission = admitted.get(receipt.webhook_id)
        if (receipt.destination_id, receipt.webhook_id) in reported:
            continue
        reason = None
        if admission is None or admission.destination_id != receipt.destination_id:
            reason = f"arrived at {receipt.destination_id}, and was not admitted for it"
        elif receipt.asset != admission.asset:
            reason = f"admitted for asset {admission.asset}, arrived for {receipt.asset}"
        elif not receipt.idempotency_key_fits:
            reason = f"arrived at {receipt.destination_id} with another Idempotency-Key"
        if reason is not None:
            reported.add((receipt.destination_id, receipt.webhook_id))
            yield Finding("identity_change", receipt.webhook_id, reason)


def _effects(facts: Facts) -> Iterator[Finding]:
    """What succeeded was taken over, and no business key was taken over twice at one destination."""
    effects: defaultdict[tuple[str, str | None], list[str]] = defaultdict(list)
    taken_over: set[tuple[str, str]] = set()
    for receipt in facts.receipts:
        if receipt.signature == "invalid":
            continue
        if receipt.is_effect:
            effects[receipt.destination_id, receipt.asset].append(receipt.webhook_id)
        if receipt.applies:
            taken_over.add((receipt.destination_id, receipt.webhook_id))
    for (destination_id, asset), ids in effects.items():
        if len(ids) > 1:
            reason = f"asset {asset} was taken over {len(ids)} times at {destination_id}: {', '.join(ids)}"
            yield Finding("second_effect", ids[0], reason)
    for delivery in facts.deliveries:
        if delivery.state == "succeeded" and (delivery.destination_id, delivery.delivery_id) not in taken_over:
            reason = f"succeeded in the ledger, never taken over by {delivery.destination_id}"
            yield Finding("lost", delivery.delivery_id, reason)


def _attempts(facts: Facts) -> Iterator[Finding]:
    """The attempt log is complete: each attempt once, a success exactly where the state says so, each request backed."""
    logged: defaultdict[str, list[LedgerAttempt]] = defaultdict(list)
    for attempt in facts.attempts:
        logged[attempt.delivery_id].append(attempt)
    requests = Counter(receipt.webhook_id for receipt in facts.receipts if receipt.signature != "invalid")
    for delivery in facts.deliveries:
        rows = [row for row in logged[delivery.delivery_id] if row.result != "late"]
        ended = delivery.attempt - (delivery.state == "leased")
        numbers = sorted(row.attempt for row in rows)
        if numbers != list(range(1, ended + 1)):
            yield Finding("attempt_log", delivery.delivery_id, f"{ended} attempts ended, on record are {numbers}")
        ends = [row.result for row in rows if row.result in TERMINAL]
        if ends != ([delivery.state] if delivery.state in TERMINAL else []):
            yield Finding("attempt_log", delivery.delivery_id, f"is {delivery.state}, its attempts ended as {ends}")
        if requests[delivery.delivery_id] > delivery.attempt:
            reason = f"{requests[delivery.delivery_id]} requests arrived, the ledger knows {delivery.attempt} attempts"
            yield Finding("attempt_log", delivery.delivery_id, reason)
    known = {delivery.delivery_id for delivery in facts.deliveries}
    for delivery_id in logged.keys() - known:
        yield Finding("attempt_log", delivery_id, "attempts of a delivery that the ledger does not have")


def _bodies(facts: Facts) -> Iterator[Finding]:
    """The admitted bytes, everywhere and each time."""
    admitted = _admissions(facts)
    seen = chain(
        ((d.delivery_id, "in the ledger", d.body_sha256) for d in facts.deliveries),
        ((a.delivery_id, f"in attempt {a.attempt}", a.body_sha256) for a in facts.attempts),
        ((r.delivery_id, f"in dispatch {r.record_id}", r.body_sha256) for r in facts.dispatches),
        ((r.delivery_id, f"in published attempt {r.record_id}", r.body_sha256) for r in facts.attempt_records),
        ((r.webhook_id, f"at {r.destination_id}", r.body_sha256) for r in facts.receipts if r.signature != "invalid"),
    )
    for delivery_id, place, sha256 in seen:
        admission = admitted.get(delivery_id)
        if admission is not None and sha256 != admission.body_sha256:
            reason = f"other bytes {place}: SHA-256 {sha256}, admitted {admission.body_sha256}"
            yield Finding("body_mismatch", delivery_id, reason)


def _topic(topic: str, records: Sequence[TopicRecord], rows: Sequence[str]) -> Iterator[Finding]:
    """Each committed row is in its topic exactly once."""
    counts = Counter(record.record_id for record in records)
    wanted = frozenset(rows)
    for row in wanted - counts.keys():
        yield Finding("topic_missing", row, f"committed, and not in the {topic} topic")
    for record in records:
        if record.record_id not in wanted:
            yield Finding("topic_unknown", record.record_id, f"in the {topic} topic, and not in its table")
    for record_id, count in counts.items():
        if count > 1:
            yield Finding("topic_repeated", record_id, f"{count} times in the {topic} topic")


def _quarantined(facts: Facts) -> Iterator[Finding]:
    """Every record was understood by those who read it."""
    for record in facts.quarantined:
        yield Finding("quarantined", record.delivery_id or "(none)", record.reason)


def _rolled_back(facts: Facts) -> Iterator[Finding]:
    """What was rolled back left no trace anywhere."""
    events = {event.event_id for event in facts.rolled_back}
    assets = {event.asset: event.event_id for event in facts.rolled_back}
    for event_id in facts.event_ids & events:
        yield Finding("rolled_back_seen", event_id, "in the ledger")
    for asset in facts.business_rows & assets.keys():
        yield Finding("rolled_back_seen", assets[asset], "in the business table")
    for topic, records in (("dispatch", facts.dispatches), ("attempts", facts.attempt_records)):
        for record in records:
            if record.event_id in events:
                yield Finding("rolled_back_seen", record.event_id, f"in the {topic} topic")
    for receipt in facts.receipts:
        if receipt.asset in assets:
            yield Finding("rolled_back_seen", assets[receipt.asset], f"at {receipt.destination_id}")


def _readmissions(facts: Facts) -> Iterator[Finding]:
    """Admitting again gave the same identities and called none of them new."""
    admitted = _admissions(facts)
    for readmission in facts.readmissions:
        if readmission.created:
            yield Finding("duplicate_admitted", readmission.delivery_id, "admitted again, and called new")
        elif readmission.delivery_id not in admitted:
            yield Finding("identity_change", readmission.delivery_id, "admitted again under another identity")


def _business_rows(facts: Facts) -> Iterator[Finding]:
    """A business row is there exactly where its event was admitted."""
    events = {admission.asset: admission.event_id for admission in facts.admissions}
    for asset in events.keys() - facts.business_rows:
        yield Finding("not_atomic", events[asset], f"admitted without its business row {asset}")
    rolled_back = {event.asset for event in facts.rolled_back}
    for asset in facts.business_rows - events.keys() - rolled_back:
        yield Finding("not_atomic", asset, "a business row whose event was not admitted")


def _processes(facts: Facts) -> Iterator[Finding]:
    """All planned kills took place; each component, asked to end, ended by itself and with 0."""
    if len(facts.kills) != facts.kills_planned:
        reason = f"{facts.kills_planned} kills were planned, {len(facts.kills)} took place"
        yield Finding("kill_missing", "*", reason)
    for component, status in facts.exit_statuses.items():
        if status != 0:
            yield Finding("unclean_end", component, f"asked to end, it left with {status}")


def _admissions(facts: Facts) -> Mapping[str, Admission]:
    return {admission.delivery_id: admission for admission in facts.admissions}
