"""The traceparent of an attempt."""

from __future__ import annotations

import re

import pytest

from pipeline.core.tracing import traceparent_of

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = GIVEN.split("-")[1]


def made(given=None, *, event_id="e1", delivery_id="dlv_1", attempt=1):
    return traceparent_of(given, event_id=event_id, delivery_id=delivery_id, attempt=attempt)


def test_an_event_stays_in_its_trace_and_each_attempt_is_a_span_of_its_own():
    first, second = made(GIVEN), made(GIVEN, attempt=2)
    for value in (first, second):
        assert value.startswith(f"00-{TRACE}-")
        assert value.endswith("-01")
    assert len({GIVEN, first, second, made(GIVEN, delivery_id="dlv_2")}) == 4


def test_without_one_all_deliveries_of_an_event_are_one_trace():
    values = [made(attempt=1), made(attempt=2), made(delivery_id="dlv_2")]
    assert len({value.split("-")[1] for value in values}) == 1
    assert len({value.split("-")[2] for value in values}) == 3
    assert made(event_id="e2").split("-")[1] != values[0].split("-")[1]
    assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", value) for value in values)
    assert made() == made()


def test_a_later_version_is_read_as_far_as_it_is_known():
    assert made(f"01-{TRACE}-00f067aa0ba902b7-ff-and-more") == made(GIVEN)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "nonsense",
        GIVEN.upper(),
        GIVEN + "-more",
        "ff" + GIVEN[2:],
        GIVEN.replace(TRACE, "0" * 32),
        GIVEN.replace("00f067aa0ba902b7", "0" * 16),
        GIVEN + "\n",
    ],
)
def test_one_that_is_not_valid_is_as_if_it_were_absent(given):
    assert made(given) == made()
