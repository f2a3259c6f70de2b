"""Answers that speak of the receiver as such. What 410 does to the ledger is tested there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from pipeline.core.classify import Failure, check_rules
from pipeline.delivery import notices
from pipeline.delivery.notices import ReceiverNotices
from pipeline.delivery.sender import Answer, NoAnswer


class NoPool:
    def connection(self):
        raise AssertionError("the ledger is not asked")


def heard(status, destination_id="acme", **rules):
    destination = SimpleNamespace(destination_id=destination_id, answer_rules=check_rules(rules))
    return destination, SimpleNamespace(result=Answer(status, [], b""), claimed=None)


async def test_rejected_authentication_is_told_once_a_minute_for_each_destination(monkeypatch):
    told = ReceiverNotices(NoPool(), "w1")
    with capture_logs() as lines:
        for status in (401, 403, 401):
            await told.heed(*heard(status))
        await told.heed(*heard(401, "other"))
        monkeypatch.setattr(notices, "WARN_SECONDS", 0.0)
        await told.heed(*heard(401))
    assert [line["destination_id"] for line in lines] == ["acme", "other", "acme"]


@pytest.mark.parametrize(
    ("status", "rules"), [(200, {}), (404, {}), (500, {}), (410, {"410": "dead"}), (410, {"gone": "retry"})]
)
async def test_other_answers_say_nothing_of_the_receiver(status, rules):
    with capture_logs() as lines:
        await ReceiverNotices(NoPool(), "w1").heed(*heard(status, **rules))
    assert lines == []


async def test_no_answer_says_nothing_either():
    destination, attempt = heard(200)
    attempt.result = NoAnswer(Failure.DNS, request_begun=False, error="no address")
    with capture_logs() as lines:
        await ReceiverNotices(NoPool(), "w1").heed(destination, attempt)
    assert lines == []
