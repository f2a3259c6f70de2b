"""Keys as text, and what one key may ask of a process."""

from __future__ import annotations

import time

import pytest

from pipeline.admission.key_limits import KeyMeter
from pipeline.admission.key_tokens import new_token, parse_token
from pipeline.admission.problems import Kind, Refusal
from pipeline.ledger.api_keys import KeyLimits


def test_a_key_is_parsed_as_it_was_made_and_shows_no_secret_by_itself() -> None:
    token = new_token()
    assert parse_token(str(token)) == token
    assert token.matches(token.secret_sha256)
    assert not new_token().matches(token.secret_sha256)
    assert token.secret not in repr(token)
    assert len({str(new_token()) for _ in range(100)}) == 100


@pytest.mark.parametrize("text", ["", "outr_", "outr_" + "a" * 16, "outr_" + "a" * 16 + "_" + "b" * 42, "x" * 1_000])
def test_what_cannot_be_a_key_is_none(text: str) -> None:
    assert parse_token(text) is None


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def refusal(meter: KeyMeter) -> Refusal | None:
    try:
        with meter.request():
            return None
    except Refusal as refused:
        return refused if refused.kind is Kind.TOO_MANY else None


def test_requests_come_back_at_the_rate(clock: Clock) -> None:
    meter = KeyMeter(KeyLimits(requests_per_second=2, bytes_per_second=1e9, in_flight_max=9), now=clock.now)
    assert [refusal(meter) is None for _ in range(3)] == [True, True, False]
    refused = refusal(meter)
    assert refused is not None
    assert refused.retry_after_seconds == pytest.approx(0.5)
    clock.now += 0.5
    assert [refusal(meter) is None for _ in range(2)] == [True, False]


def test_bytes_are_paid_back_before_anything_more_is_read(clock: Clock) -> None:
    meter = KeyMeter(KeyLimits(requests_per_second=1e6, bytes_per_second=100, in_flight_max=9), now=clock.now)
    meter.charge(350)
    refused = refusal(meter)
    assert refused is not None
    assert refused.retry_after_seconds == pytest.approx(2.5)
    clock.now += 2.6
    assert refusal(meter) is None
    clock.now += 1_000
    meter.charge(100)  # what was not used is not saved up
    assert refusal(meter) is not None


def test_places_in_flight_are_given_back_also_after_a_failure(clock: Clock) -> None:
    meter = KeyMeter(KeyLimits(requests_per_second=1e6, bytes_per_second=1e9, in_flight_max=1), now=clock.now)
    with meter.request():
        assert refusal(meter) is not None
    with pytest.raises(ZeroDivisionError), meter.request():
        _ = 1 / 0
    assert refusal(meter) is None
    assert meter.is_idle


def test_changed_limits_hold_from_now_on(clock: Clock) -> None:
    meter = KeyMeter(KeyLimits(requests_per_second=1, bytes_per_second=1e9, in_flight_max=1), now=clock.now)
    with meter.request():
        meter.configure(KeyLimits(requests_per_second=100, bytes_per_second=1e9, in_flight_max=5), now=clock.now)
        clock.now += 1
        assert refusal(meter) is None
