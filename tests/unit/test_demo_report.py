"""The reconciliation finds every kind of defect, by id, and nothing where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pipeline.demo.facts import (
    Admission,
    DestinationFact,
    Facts,
    Kill,
    LedgerAttempt,
    LedgerDelivery,
    OutboxRow,
    Quarantined,
    Readmission,
    RolledBack,
    TopicRecord,
)
from pipeline.demo.receipts import Receipt
from pipeline.demo.report import compare
from pipeline.demo.report_text import as_json, as_text

Change = Callable[[Facts], Facts]


def admission(number: int, destination_id: str = "healthy") -> Admission:
    return Admission(
        delivery_id=f"dlv_{number}",
        event_id=f"event-{number}",
        asset=str(number),
        destination_id=destination_id,
        body_sha256=f"sha-{number}",
        committed_at=1000.0 + number,
        is_scheduled=False,
    )


def receipt(number: int, destination_id: str = "healthy", **other: object) -> Receipt:
    usual = Receipt(
        destination_id=destination_id,
        webhook_id=f"dlv_{number}",
        received_at=1000.010 + number,
        body_sha256=f"sha-{number}",
        signature="valid",
        idempotency_key_fits=True,
        asset=str(number),
        applies=True,
        is_effect=True,
        status=200,
    )
    return msgspec.structs.replace(usual, **other)


def delivery(
    number: int, destination_id: str = "healthy", state: str = "succeeded", attempt: int = 1
) -> LedgerDelivery:
    return LedgerDelivery(
        delivery_id=f"dlv_{number}",
        event_id=f"event-{number}",
        destination_id=destination_id,
        state=state,  # type: ignore[arg-type]
        attempt=attempt,
        body_sha256=f"sha-{number}",
        waiting_reason="retry" if state == "pending" else None,
    )


def attempt(number: int, nth: int = 1, result: str = "succeeded") -> LedgerAttempt:
    return LedgerAttempt(
        attempt_id=f"attempt-{number}-{nth}",
        delivery_id=f"dlv_{number}",
        attempt=nth,
        result=result,  # type: ignore[arg-type]
        body_sha256=f"sha-{number}",
    )


def dispatch(number: int) -> TopicRecord:
    return TopicRecord(
        record_id=f"message-{number}",
        delivery_id=f"dlv_{number}",
        event_id=f"event-{number}",
        body_sha256=f"sha-{number}",
    )


def published(row: LedgerAttempt) -> TopicRecord:
    number = row.delivery_id.removeprefix("dlv_")
    return TopicRecord(
        record_id=row.attempt_id,
        delivery_id=row.delivery_id,
        event_id=f"event-{number}",
        body_sha256=row.body_sha256,
    )


def good_facts() -> Facts:
    """1: succeeded; 2: succeeded at the second attempt; 3: dead; 4: waiting; 9: rolled back."""
    attempts = [
        attempt(1),
        attempt(2, 1, "lease_expired"),
        attempt(2, 2),
        attempt(3, 1, "dead"),
        attempt(4, 1, "retry"),
    ]
    return Facts(
        destinations={
            "healthy": DestinationFact("Ok", "succeeded", is_healthy=True),
            "rejecting": DestinationFact("Rejecting", "dead", is_healthy=False),
            "hanging": DestinationFact("Hanging", None, is_healthy=False),
        },
        admissions=[admission(1), admission(2), admission(3, "rejecting"), admission(4, "hanging")],
        rolled_back=[RolledBack("event-9", "9")],
        readmissions=[Readmission("dlv_1", created=False)],
        business_rows=frozenset({"1", "2", "3", "4"}),
        deliveries=[
            delivery(1),
            delivery(2, attempt=2),
            delivery(3, "rejecting", "dead"),
            delivery(4, "hanging", "pending"),
        ],
        attempts=attempts,
        event_ids=frozenset({"event-1", "event-2", "event-3", "event-4"}),
        outbox=[OutboxRow(f"message-{number}", "admitted") for number in (1, 2, 3, 4)],
        dispatches=[dispatch(number) for number in (1, 2, 3, 4)],
        attempt_records=[published(row) for row in attempts],
        receipts=[
            receipt(1),
            receipt(2),
            receipt(2, is_effect=False, received_at=1007.0),
            receipt(3, "rejecting", applies=False, is_effect=False, status=400),
            receipt(4, "hanging", applies=False, is_effect=False, status=None),
        ],
        kills=[Kill("worker", 1001.5, 1)],
        kills_planned=1,
        exit_statuses={"worker": 0, "connector": 0},
        elapsed_seconds=12.34,
    )


def test_nothing_is_found_where_all_is_well() -> None:
    report = compare(good_facts())
    assert report.findings == []
    assert report.is_exact
    assert (report.events, report.admitted, report.succeeded, report.dead, report.waiting) == (4, 4, 2, 1, 1)
    assert (report.attempts, report.lease_expired, report.late) == (5, 1, 0)
    assert (report.receiver_distinct, report.receiver_repeats, report.receiver_effects) == (4, 1, 2)
    assert (report.rolled_back, report.readmitted, report.dispatches) == (1, 1, 4)
    assert report.dispatch_reasons == {"admitted": 4}
    assert (report.commit_to_receipt_ms.p50, report.commit_to_receipt_ms.p99) == (10.0, 10.0)
    assert report.elapsed_seconds == 12.3
    healthy, rejecting, hanging = report.destinations
    assert (healthy.admitted, healthy.succeeded, healthy.distinct, healthy.repeats, healthy.effects) == (2, 2, 2, 1, 2)
    assert (rejecting.admitted, rejecting.dead, rejecting.distinct, rejecting.effects) == (1, 1, 1, 0)
    assert (hanging.admitted, hanging.waiting, hanging.distinct, hanging.effects) == (1, 1, 1, 0)


def with_delivery(number: int, **other: object) -> Change:
    def change(facts: Facts) -> Facts:
        rows = [replace(d, **other) if d.delivery_id == f"dlv_{number}" else d for d in facts.deliveries]  # type: ignore[arg-type]
        return replace(facts, deliveries=rows)

    return change


def with_receipt(number: int, **other: object) -> Change:
    def change(facts: Facts) -> Facts:
        rows = [msgspec.structs.replace(r, **other) if r.webhook_id == f"dlv_{number}" else r for r in facts.receipts]
        return replace(facts, receipts=rows)

    return change


def without(field: str, delivery_id: str) -> Change:
    def change(facts: Facts) -> Facts:
        name = "webhook_id" if field == "receipts" else "delivery_id"
        kept: dict[str, Any] = {field: [row for row in getattr(facts, field) if getattr(row, name) != delivery_id]}
        return replace(facts, **kept)

    return change


def adding(field: str, *rows: object) -> Change:
    def change(facts: Facts) -> Facts:
        longer: dict[str, Any] = {field: [*getattr(facts, field), *rows]}
        return replace(facts, **longer)

    return change


def adding_key(field: str, key: str) -> Change:
    def change(facts: Facts) -> Facts:
        larger: dict[str, Any] = {field: getattr(facts, field) | {key}}
        return replace(facts, **larger)

    return change


DEFECTS: dict[str, tuple[Change, str, str]] = {
    "missing in the ledger": (without("deliveries", "dlv_4"), "lost", "dlv_4"),
    "the sum does not come out": (without("deliveries", "dlv_4"), "sum", "*"),
    "succeeded, never received": (without("receipts", "dlv_1"), "lost", "dlv_1"),
    "succeeded, received, not taken over": (with_receipt(1, applies=False, is_effect=False), "lost", "dlv_1"),
    "succeeded, received under a bad signature": (with_receipt(1, signature="invalid"), "lost", "dlv_1"),
    "never admitted": (adding("deliveries", delivery(7)), "unknown_delivery", "dlv_7"),
    "of a destination that nobody knows": (
        adding("deliveries", delivery(7, "stranger")),
        "unknown_delivery",
        "dlv_7",
    ),
    "same identity for another event": (with_delivery(1, event_id="event-2"), "identity_change", "dlv_1"),
    "same identity for another destination": (
        with_delivery(1, destination_id="rejecting"),
        "identity_change",
        "dlv_1",
    ),
    "stuck": (with_delivery(1, state="enqueued"), "unsettled", "dlv_1"),
    "stuck in flight": (with_delivery(1, state="leased"), "unsettled", "dlv_1"),
    "dead at a healthy destination": (with_delivery(1, state="dead"), "wrong_end", "dlv_1"),
    "succeeded where all is rejected": (with_delivery(3, state="succeeded"), "wrong_end", "dlv_3"),
    "succeeded where nobody answers": (with_delivery(4, state="succeeded"), "wrong_end", "dlv_4"),
    "unknown identity on the wire": (
        adding("receipts", receipt(1, webhook_id="dlv_x", is_effect=False)),
        "identity_change",
        "dlv_x",
    ),
    "identity of another destination": (
        with_receipt(3, destination_id="healthy", applies=False),
        "identity_change",
        "dlv_3",
    ),
    "identity of another business key": (with_receipt(1, asset="2"), "identity_change", "dlv_1"),
    "no business key": (with_receipt(1, asset=None), "identity_change", "dlv_1"),
    "another idempotency key": (with_receipt(1, idempotency_key_fits=False), "identity_change", "dlv_1"),
    "a second effect": (adding("receipts", receipt(1, webhook_id="dlv_x")), "second_effect", "dlv_1"),
    "a second effect of one identity": (adding("receipts", receipt(1)), "second_effect", "dlv_1"),
    "bad signature": (adding("receipts", receipt(1, signature="invalid")), "invalid_signature", "dlv_1"),
    "other bytes on the wire": (with_receipt(1, body_sha256="sha-x"), "body_mismatch", "dlv_1"),
    "other bytes at the repeat": (
        adding("receipts", receipt(2, body_sha256="sha-x", is_effect=False)),
        "body_mismatch",
        "dlv_2",
    ),
    "other bytes in the ledger": (with_delivery(1, body_sha256="sha-x"), "body_mismatch", "dlv_1"),
    "other bytes in an attempt": (
        adding("attempts", replace(attempt(1, 1, "late"), body_sha256="sha-x")),
        "body_mismatch",
        "dlv_1",
    ),
    "other bytes in the topic": (
        adding("dispatches", replace(dispatch(1), body_sha256="sha-x")),
        "body_mismatch",
        "dlv_1",
    ),
    "other bytes in a published attempt": (
        adding("attempt_records", replace(published(attempt(1)), body_sha256="sha-x")),
        "body_mismatch",
        "dlv_1",
    ),
    "attempt not on record": (without("attempts", "dlv_1"), "attempt_log", "dlv_1"),
    "attempt twice on record": (adding("attempts", attempt(1)), "attempt_log", "dlv_1"),
    "attempt of nothing": (adding("attempts", attempt(7)), "attempt_log", "dlv_7"),
    "ended otherwise than its attempts": (with_delivery(3, state="pending"), "attempt_log", "dlv_3"),
    "a request without an attempt": (adding("receipts", receipt(1, is_effect=False)), "attempt_log", "dlv_1"),
    "dispatch missing in its topic": (without("dispatches", "dlv_2"), "topic_missing", "message-2"),
    "dispatch twice in its topic": (adding("dispatches", dispatch(2)), "topic_repeated", "message-2"),
    "dispatch that no row made": (adding("dispatches", dispatch(7)), "topic_unknown", "message-7"),
    "attempt missing in its topic": (without("attempt_records", "dlv_3"), "topic_missing", "attempt-3-1"),
    "attempt twice in its topic": (
        adding("attempt_records", published(attempt(3))),
        "topic_repeated",
        "attempt-3-1",
    ),
    "attempt that no row made": (adding("attempt_records", published(attempt(7))), "topic_unknown", "attempt-7-1"),
    "put into quarantine": (
        adding("quarantined", Quarantined("dlv_2", "the ledger has no such delivery")),
        "quarantined",
        "dlv_2",
    ),
    "rolled back, in the ledger": (adding_key("event_ids", "event-9"), "rolled_back_seen", "event-9"),
    "rolled back, in the business table": (adding_key("business_rows", "9"), "rolled_back_seen", "event-9"),
    "rolled back, in the dispatch topic": (adding("dispatches", dispatch(9)), "rolled_back_seen", "event-9"),
    "rolled back, in the attempts topic": (
        adding("attempt_records", published(attempt(9))),
        "rolled_back_seen",
        "event-9",
    ),
    "rolled back, at a receiver": (adding("receipts", receipt(9)), "rolled_back_seen", "event-9"),
    "admitted again as new": (
        adding("readmissions", Readmission("dlv_2", created=True)),
        "duplicate_admitted",
        "dlv_2",
    ),
    "admitted again under another identity": (
        adding("readmissions", Readmission("dlv_x", created=False)),
        "identity_change",
        "dlv_x",
    ),
    "admitted without its business row": (
        lambda facts: replace(facts, business_rows=facts.business_rows - {"4"}),
        "not_atomic",
        "event-4",
    ),
    "a kill that did not take place": (lambda facts: replace(facts, kills=[]), "kill_missing", "*"),
    "component that had to be killed": (
        lambda facts: replace(facts, exit_statuses={"worker-1": -9, "worker-2": 0}),
        "unclean_end",
        "worker-1",
    ),
    "business row without its event": (adding_key("business_rows", "7"), "not_atomic", "7"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_by_id(name: str) -> None:
    change, kind, identity = DEFECTS[name]
    report = compare(change(good_facts()))
    assert not report.is_exact
    assert (kind, identity) in {(finding.kind, finding.id) for finding in report.findings}
    assert all(finding.reason for finding in report.findings)


@pytest.mark.parametrize(
    ("defect", "figure"),
    [
        ("missing in the ledger", "lost"),
        ("succeeded, never received", "lost"),
        ("unknown identity on the wire", "identity_changes"),
        ("other bytes on the wire", "body_mismatches"),
        ("rolled back, at a receiver", "rolled_back_seen"),
        ("admitted again as new", "duplicates_admitted"),
        ("bad signature", "invalid_signatures"),
        ("put into quarantine", "quarantined"),
    ],
)
def test_the_figure_of_a_defect_counts_it(defect: str, figure: str) -> None:
    assert getattr(compare(good_facts()), figure) == 0
    assert getattr(compare(DEFECTS[defect][0](good_facts())), figure) == 1


def test_latency_leaves_out_what_a_schedule_or_a_misbehaving_receiver_decides() -> None:
    facts = good_facts()
    scheduled = [replace(a, is_scheduled=True) if a.delivery_id == "dlv_1" else a for a in facts.admissions]
    report = compare(
        replace(facts, admissions=scheduled, receipts=[receipt(1, received_at=2000.0), *facts.receipts[1:]])
    )
    assert report.commit_to_receipt_ms.p99 == 10.0
    assert compare(with_receipt(3, received_at=9000.0)(facts)).commit_to_receipt_ms.p99 == 10.0


def test_latency_before_the_kills_is_told_apart() -> None:
    facts = good_facts()
    report = compare(replace(facts, receipts=[facts.receipts[0], receipt(2, received_at=1009.0), *facts.receipts[2:]]))
    assert report.commit_to_receipt_ms.p99 == 7000.0
    assert report.commit_to_receipt_ms_before_kills.p99 == 10.0


def test_percentiles_are_nearest_rank() -> None:
    facts = good_facts()
    admissions = [replace(admission(n), committed_at=0.0) for n in range(1, 101)]
    receipts = [receipt(n, received_at=n / 1000) for n in range(1, 101)]
    latency = compare(replace(facts, admissions=admissions, receipts=receipts, kills=())).commit_to_receipt_ms
    assert (latency.p50, latency.p95, latency.p99) == (50.0, 95.0, 99.0)


def test_the_text_names_each_finding_with_its_id_and_reason() -> None:
    report = compare(DEFECTS["stuck"][0](good_facts()))
    text = as_text(report)
    assert "NOT EXACT" in text
    for finding in report.findings:
        assert f"{finding.kind}  {finding.id}  {finding.reason}" in text
    assert "NOT EXACT" not in as_text(compare(good_facts()))


def test_the_object_has_every_figure_and_every_finding() -> None:
    report = json.loads(as_json(compare(DEFECTS["stuck"][0](good_facts()))))
    assert report["exact"] is False
    assert {"kind", "id", "reason"} == set(report["findings"][0])
    assert set(report) >= {
        "admitted",
        "succeeded",
        "dead",
        "waiting",
        "attempts",
        "receiver_distinct",
        "receiver_repeats",
        "lost",
        "identity_changes",
        "body_mismatches",
        "rolled_back_seen",
        "commit_to_receipt_ms",
        "elapsed_seconds",
    }
    assert "\n" not in as_json(compare(good_facts()))


def test_a_run_without_any_receipt_has_no_latency() -> None:
    report = compare(replace(good_facts(), receipts=[]))
    assert report.commit_to_receipt_ms.p50 is None
    assert "no sample" in as_text(report)
