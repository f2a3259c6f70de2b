"""The table of answers."""

from __future__ import annotations

import pytest

from pipeline.core.classify import (
    Failure,
    Outcome,
    RulesError,
    Verdict,
    check_rules,
    classify_failure,
    classify_status,
)

STATUSES = [
    ((200, 201, 202, 204, 206, 299), Outcome.SUCCESS, Verdict.SUCCESS, False),
    ((301, 302, 303, 304, 307, 308), Outcome.REDIRECT, Verdict.RETRY, False),
    ((400, 402, 404, 405, 409, 413, 415, 418, 422, 451, 499), Outcome.REJECTED, Verdict.DEAD, False),
    ((401, 403), Outcome.UNAUTHORIZED, Verdict.RETRY, False),
    ((408, 425), Outcome.RETRYABLE, Verdict.RETRY, False),
    ((410,), Outcome.GONE, Verdict.DEAD, False),
    ((429, 503), Outcome.THROTTLED, Verdict.RETRY, False),
    ((502, 504), Outcome.THROTTLED, Verdict.RETRY, True),
    ((500, 501, 505, 507, 520, 599), Outcome.SERVER_ERROR, Verdict.RETRY, True),
    ((0, 99, 100, 101, 199, 600, 999), Outcome.INVALID_ANSWER, Verdict.RETRY, True),
]


@pytest.mark.parametrize(
    ("status", "outcome", "verdict", "ambiguous"),
    [(status, *rest) for statuses, *rest in STATUSES for status in statuses],
)
def test_statuses(status, outcome, verdict, ambiguous):
    result = classify_status(status)
    assert (result.outcome, result.verdict, result.ambiguous) == (outcome, verdict, ambiguous)


@pytest.mark.parametrize(
    ("failure", "before", "after"),
    [
        (Failure.DNS, Outcome.DNS_FAILED, Outcome.CONNECTION_LOST),
        (Failure.CONNECT, Outcome.CONNECT_FAILED, Outcome.CONNECTION_LOST),
        (Failure.TLS, Outcome.TLS_FAILED, Outcome.CONNECTION_LOST),
        (Failure.TARGET_REFUSED, Outcome.TARGET_REFUSED, Outcome.CONNECTION_LOST),
        (Failure.TIMEOUT, Outcome.TIMEOUT_BEFORE_SENT, Outcome.TIMEOUT_AFTER_SENT),
        (Failure.CONNECTION_LOST, Outcome.CONNECT_FAILED, Outcome.CONNECTION_LOST),
        (Failure.INVALID_ANSWER, Outcome.CONNECT_FAILED, Outcome.INVALID_ANSWER),
        (Failure.NOT_SENT, Outcome.NOT_SENT, Outcome.CONNECTION_LOST),
    ],
)
def test_failures_are_ambiguous_exactly_when_the_request_was_begun(failure, before, after):
    assert classify_failure(failure, request_begun=False).outcome is before
    assert classify_failure(failure, request_begun=False).ambiguous is False
    assert classify_failure(failure, request_begun=True).outcome is after
    assert classify_failure(failure, request_begun=True).ambiguous is True


def test_only_what_is_tried_again_has_a_reason_to_wait():
    assert classify_status(200).waiting_reason is None
    assert classify_status(404).waiting_reason is None
    assert classify_status(500).waiting_reason == "retry"
    assert classify_status(429).waiting_reason == "throttled"


def test_every_outcome_can_happen():
    seen = {classify_status(status).outcome for status in range(1000)}
    seen |= {classify_failure(failure, request_begun=begun).outcome for failure in Failure for begun in (False, True)}
    assert seen == set(Outcome)


RULES = check_rules(
    {"404": "retry", "409": "success", "410": "dead", "500": "dead", "server_error": "retry", "tls_failed": "dead"}
)


@pytest.mark.parametrize(
    ("status", "outcome", "verdict", "ambiguous"),
    [
        (404, Outcome.REJECTED, Verdict.RETRY, False),
        (409, Outcome.SUCCESS, Verdict.SUCCESS, False),
        (410, Outcome.GONE, Verdict.DEAD, False),
        (500, Outcome.SERVER_ERROR, Verdict.DEAD, True),  # the status goes before its outcome
        (501, Outcome.SERVER_ERROR, Verdict.RETRY, True),
        (405, Outcome.REJECTED, Verdict.DEAD, False),
        (200, Outcome.SUCCESS, Verdict.SUCCESS, False),
    ],
)
def test_rules_of_a_destination_change_what_follows_and_not_what_happened(status, outcome, verdict, ambiguous):
    line = classify_status(status, RULES)
    assert (line.outcome, line.verdict, line.ambiguous) == (outcome, verdict, ambiguous)


def test_a_rule_may_speak_of_an_outcome_without_a_status():
    assert classify_failure(Failure.TLS, request_begun=False, rules=RULES).verdict is Verdict.DEAD
    assert classify_failure(Failure.DNS, request_begun=False, rules=RULES).verdict is Verdict.RETRY


def test_410_disables_the_destination_unless_a_rule_speaks_of_it():
    assert classify_status(410).disables_destination
    assert not classify_status(410, RULES).disables_destination
    assert not classify_status(410, check_rules({"gone": "retry"})).disables_destination
    assert not any(classify_status(status).disables_destination for status in range(1000) if status != 410)


@pytest.mark.parametrize(
    "rules",
    [
        *({"200": "retry"}, {"600": "dead"}, {"299": "dead"}, {"4xx": "retry"}, {"404": "maybe"}, {"": "dead"}),
        *({"success": "dead"}, {"not_sent": "dead"}, {"tls_failed": "success"}, {"404 ": "dead"}, {"٤٠٤": "dead"}),
    ],
)
def test_rules_that_mean_nothing_are_refused(rules):
    with pytest.raises(RulesError, match=next(iter(rules)).strip() or "rule"):
        check_rules(rules)
