"""Moments in columns as records carry them."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.moments import milliseconds_of
from connectors.postgres.values import codec_of

EPOCH_2000 = datetime(2000, 1, 1, tzinfo=UTC)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 31, 23)))  # noqa: DTZ001  # made UTC below
def test_every_moment_that_a_record_can_carry_is_rounded_down(naive: datetime) -> None:
    moment = naive.replace(tzinfo=UTC)
    binary = struct.pack(">q", (moment - EPOCH_2000) // timedelta(microseconds=1))
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    for oid in (1114, 1184):
        assert milliseconds_of(codec_of(oid).text(binary).decode()) == expected
    assert milliseconds_of(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["infinity", "-infinity", "0", "-1", "1970-01-01T00:00:00.000000Z", "1969-12-31T23:59:59.999999Z",
     "-4713-11-24T00:00:00.000000Z", "+294276-12-31T23:59:59.999999Z", "9223372036854775807", "", "x"],
)  # fmt: skip
def test_other_moments_are_errors_of_their_row(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        milliseconds_of(text)
