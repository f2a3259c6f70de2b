"""What an operator asks for, as an offset of one partition; and how times and scopes are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.places import Bounds, Place
from pipeline.offsets.targets import (
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToListed,
    ToOffset,
    ToTime,
    parse_duration,
    parse_moment,
    parse_scope,
    wanted_offset,
)

PLACE = Place("facts", 0)
BOUNDS = Bounds(start=10, end=100, stable_end=90)
NOON = ToTime(datetime(2026, 11, 30, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    ("target", "at_time", "offset"),
    [
        (ToEarliest(), None, 10),
        (ToLatest(), None, 90),  # and not 100: a transaction that is still open is not skipped
        (NOON, 42, 42),
        (NOON, 0, 0),
        (NOON, None, 90),
        (ToOffset(7), None, 7),
        (ShiftBy(-5), None, 45),
        (ShiftBy(5), None, 55),
        (ToListed({PLACE: 33}, "x.csv"), None, 33),
    ],
)
def test_the_wanted_offset(target: Target, at_time: int | None, offset: int) -> None:
    assert wanted_offset(target, PLACE, before=50, bounds=BOUNDS, at_time=at_time).offset == offset


def test_a_time_after_everything_says_that_it_means_the_end() -> None:
    note = wanted_offset(NOON, PLACE, before=50, bounds=BOUNDS, at_time=None).note
    assert note is not None
    assert "the end" in note
    assert wanted_offset(NOON, PLACE, before=50, bounds=BOUNDS, at_time=42).note is None


def test_nothing_committed_cannot_be_shifted() -> None:
    with pytest.raises(OffsetsError, match="facts partition 0 has no committed offset"):
        wanted_offset(ShiftBy(-5), PLACE, before=None, bounds=BOUNDS, at_time=None)


def test_a_file_without_the_partition_means_nothing() -> None:
    with pytest.raises(OffsetsError, match=r"x\.csv has no offset for facts partition 0"):
        wanted_offset(ToListed({}, "x.csv"), PLACE, before=5, bounds=BOUNDS, at_time=None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6h", 21600), ("30m", 1800), ("2d", 172800), ("45s", 45), ("PT6H", 21600), ("P1DT1H1M1.5S", 90061.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "6", "P", "PT", "6 h", "-6h", "1h30m", "P1Y", "٣h", "9" * 40 + "d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OffsetsError, match="is no duration"):
        parse_duration(text)


def test_moments_say_their_time_zone() -> None:
    assert parse_moment("2026-11-30T12:00:00Z") == NOON.at
    assert parse_moment("2026-11-30T13:00:00+01:00") == NOON.at
    with pytest.raises(OffsetsError, match="time zone"):
        parse_moment("2026-11-30T12:00:00")
    with pytest.raises(OffsetsError, match="is no moment"):
        parse_moment("yesterday")


def test_scopes() -> None:
    assert parse_scope("facts") == ("facts", None)
    assert parse_scope("facts:2,0,2") == ("facts", (0, 2))


@pytest.mark.parametrize("text", ["", ":1", "facts:", "facts:x", "facts:1,", "facts:-1", "facts:1:2"])
def test_what_is_no_scope(text: str) -> None:
    with pytest.raises(OffsetsError, match="is no scope"):
        parse_scope(text)
