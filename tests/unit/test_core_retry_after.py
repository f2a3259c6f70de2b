"""Retry-After in all its forms, honest and not."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.retry_after import parse_retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def parse(value: str | None) -> float | None:
    return parse_retry_after(value, now=NOW, seconds_max=86_400.0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("007", 7.0),
        ("86401", 86_400.0),
        ("9" * 60, 86_400.0),
        ("Sun, 01 Mar 2026 12:01:30 GMT", 90.0),
        ("Sunday, 01-Mar-26 12:01:30 GMT", 90.0),
        ("Sun Mar  1 12:01:30 2026", 90.0),
        ("Sun, 01 Mar 2026 13:01:30 +0100", 90.0),
        ("Sat, 28 Feb 2026 12:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
    ],
)
def test_values_with_a_meaning(value, seconds):
    assert parse(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "   ",
        "soon",
        "-5",
        "+5",
        "1e9",
        "0x10",
        "inf",
        "nan",
        "12 seconds",
        "1,000",
        "٣",  # a digit, but not one of HTTP's
        "Sun, 99 Mar 2026 12:00:00 GMT",
        "Sun, 01 Mar 99999 12:00:00 GMT",
        "1" * 65,
        "\x00",
    ],
)
def test_garbage_is_as_if_it_were_absent(value):
    assert parse(value) is None


@given(st.text(max_size=80))
def test_no_text_raises_or_leaves_the_bounds(value):
    seconds = parse(value)
    assert seconds is None or 0.0 <= seconds <= 86_400.0


FIRST, LAST = datetime(1900, 1, 1), datetime(9999, 1, 1)  # noqa: DTZ001 - hypothesis wants them naive


@given(st.datetimes(min_value=FIRST, max_value=LAST, timezones=st.just(UTC)))
def test_dates_are_read_as_they_are_written(moment):
    seconds = parse(format_datetime(moment.replace(microsecond=0), usegmt=True))
    expected = (moment.replace(microsecond=0) - NOW).total_seconds()
    assert seconds == min(max(expected, 0.0), 86_400.0)
