"""From a result to what the ledger records."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pipeline.core.classify import Failure, check_rules
from pipeline.delivery.connections import Timings
from pipeline.delivery.sender import Answer, NoAnswer
from pipeline.delivery.settling import Attempt, settlement_of
from pipeline.ledger.deliveries import Claimed
from pipeline.ledger.destinations import Destination

STARTED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def make_destination(**changes):
    values = {
        "destination_id": "d",
        "url": "https://receiver.example/",
        "enabled": True,
        "start_rate_per_second": 50.0,
        "burst": 50,
        "concurrency": 16,
        "timeout_seconds": 20.0,
        "retry_first_delay_seconds": 10.0,
        "retry_factor": 3.0,
        "retry_max_delay_seconds": 21_600.0,
        "retry_max_attempts": 20,
        "retry_max_age_seconds": 432_000.0,
        "allowed_networks": (),
        "secrets": (),
    }
    return Destination(**(values | changes))


def settle(result, *, attempt=1, age_seconds=1.0, destination=None, seconds_max=86_400.0, drawn=0.5, unauthorized=0):
    claimed = Claimed(
        delivery_id="dlv_1",
        destination_id="d",
        attempt=attempt,
        leased_at=STARTED,
        event_id="e",
        event_type="t",
        content_type="text/plain",
        headers={},
        payload_sha256=b"\1" * 32,
        payload=None,
        unauthorized=unauthorized,
        age_seconds=age_seconds,
        lease_seconds=35.0,
    )
    return settlement_of(
        Attempt(claimed, 7, ("key_1", "key_2"), STARTED, 0.25, result),
        destination or make_destination(),
        retry_after_seconds_max=seconds_max,
        draw=lambda: drawn,
    )


def test_success_keeps_its_evidence():
    settlement = settle(Answer(204, [], b"thanks"))
    assert (settlement.delivery_id, settlement.attempt, settlement.dispatch_seq) == ("dlv_1", 1, 7)
    assert (settlement.state, settlement.outcome, settlement.status) == ("succeeded", "success", 204)
    assert (settlement.delay_seconds, settlement.waiting_reason, settlement.error) == (None, None, None)
    assert settlement.response_excerpt == b"thanks"
    assert settlement.key_ids == ("key_1", "key_2")
    assert settlement.payload_sha256 == b"\1" * 32
    assert (settlement.started_at, settlement.duration_seconds) == (STARTED, 0.25)


def test_a_failure_waits_for_its_backoff():
    settlement = settle(Answer(500, [], b""), attempt=2)
    assert (settlement.state, settlement.delay_seconds) == ("pending", 15.0)
    assert (settlement.waiting_reason, settlement.outcome, settlement.ambiguous) == ("retry", "server_error", True)


def test_retry_after_is_honoured_recorded_and_bounded():
    settlement = settle(Answer(429, [("retry-after", "120")], b""))
    assert (settlement.delay_seconds, settlement.retry_after_seconds) == (120.0, 120.0)
    assert settlement.waiting_reason == "throttled"
    assert settle(Answer(503, [("retry-after", "999999")], b""), seconds_max=600.0).delay_seconds == 600.0
    assert settle(Answer(503, [("retry-after", "Sun, 01 Mar 2026 12:01:00 GMT")], b"")).delay_seconds == 60.0
    assert settle(Answer(503, [("retry-after", "soon")], b"")).delay_seconds == 5.0


def test_retry_after_on_a_terminal_answer_changes_nothing():
    settlement = settle(Answer(404, [("retry-after", "120")], b"no"))
    assert (settlement.state, settlement.delay_seconds, settlement.error) == ("dead", None, None)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"attempt": 20}, "attempts_exhausted"), ({"age_seconds": 432_000.0}, "age_exhausted")],
)
def test_a_policy_that_is_used_up_ends_it_and_says_so(changes, error):
    settlement = settle(Answer(500, [], b""), **changes)
    assert (settlement.state, settlement.delay_seconds, settlement.waiting_reason) == ("dead", None, None)
    assert settlement.error == error
    failed = settle(NoAnswer(Failure.CONNECT, False, "refused"), **changes)
    assert failed.error == f"refused; {error}"


def test_success_on_the_last_attempt_is_success():
    settlement = settle(Answer(200, [], b""), attempt=20, age_seconds=1e9)
    assert (settlement.state, settlement.error) == ("succeeded", None)


def test_no_answer_says_what_happened_and_whether_it_may_have_been_applied():
    before = settle(NoAnswer(Failure.CONNECT, False, "connection refused"))
    assert (before.outcome, before.ambiguous, before.status, before.response_excerpt) == (
        "connect_failed",
        False,
        None,
        None,
    )
    assert before.error == "connection refused"
    after = settle(NoAnswer(Failure.TIMEOUT, True, "no answer within 20 s"))
    assert (after.outcome, after.ambiguous) == ("timeout_after_sent", True)


def test_phases_and_a_bounded_part_of_the_header_are_kept():
    headers = [("server", "a\0b"), ("set-cookie", "session=secret"), ("x-request-id", "r" * 1000), ("server", "second")]
    settlement = settle(Answer(500, headers, b"", Timings(dns=0.1, connect=0.2, tls=None, first_byte=0.4)))
    assert settlement.response_headers == {"server": "a\\0b", "x-request-id": "r" * 256}
    phases = (settlement.dns_seconds, settlement.connect_seconds, settlement.tls_seconds, settlement.first_byte_seconds)
    assert phases == (0.1, 0.2, None, 0.4)
    assert settle(NoAnswer(Failure.DNS, False, "no")).response_headers is None


def test_rejected_authentication_waits_long_and_ends_by_its_own_count():
    assert settle(Answer(401, [], b""), attempt=9, unauthorized=0, drawn=0.0).delay_seconds == 60.0
    assert settle(Answer(403, [], b""), attempt=9, unauthorized=1, drawn=0.0).delay_seconds == 600.0
    settlement = settle(Answer(401, [], b""), attempt=9, unauthorized=4)
    assert (settlement.state, settlement.error) == ("dead", "unauthorized_exhausted")
    # Other failures keep their schedule, whatever came before.
    assert settle(Answer(500, [], b""), unauthorized=4).state == "pending"


def test_a_destinations_rules_and_list_of_delays_decide():
    destination = make_destination(
        answer_rules=check_rules({"404": "retry", "409": "success", "401": "retry"}), retry_delays_seconds=(7.0,)
    )
    assert settle(Answer(404, [], b""), destination=destination, drawn=0.0).delay_seconds == 7.0
    assert settle(Answer(404, [], b""), destination=destination, attempt=2).state == "dead"
    assert settle(Answer(401, [], b""), destination=destination, drawn=0.0, unauthorized=9).delay_seconds == 7.0
    accepted = settle(Answer(409, [], b""), destination=destination)
    assert (accepted.state, accepted.outcome, accepted.status, accepted.ambiguous) == (
        "succeeded",
        "success",
        409,
        False,
    )
