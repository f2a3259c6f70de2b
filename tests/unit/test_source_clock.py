"""When a clock makes a pass begin: intervals, cron expressions, summer time, and ticks that were missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reconcile.source_clock import cron_is_due, interval_is_due, next_tick

BERLIN = "Europe/Berlin"
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def local(*parts: int, fold: int = 0) -> datetime:
    return datetime(*parts, tzinfo=ZoneInfo(BERLIN), fold=fold).astimezone(UTC)  # type: ignore[arg-type, misc]


def ticks(expression: str, after: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        tick = next_tick(expression, BERLIN, after)
        assert tick is not None
        found.append(tick)
        after = tick
    return found


def test_an_interval_is_due_after_its_seconds_and_at_first() -> None:
    assert interval_is_due(5, None, NOON)
    assert not interval_is_due(5, NOON, NOON + timedelta(seconds=4.9))
    assert interval_is_due(5, NOON, NOON + timedelta(seconds=5))
    assert interval_is_due(5, NOON, NOON + timedelta(days=5))


def test_a_tick_is_due_from_its_time_on_until_it_is_heeded() -> None:
    since = local(2026, 12, 1, 2, 29, 59)
    assert not cron_is_due("30 2 * * *", BERLIN, since, local(2026, 12, 1, 2, 29, 59))
    assert cron_is_due("30 2 * * *", BERLIN, since, local(2026, 12, 1, 2, 30))
    assert not cron_is_due("30 2 * * *", BERLIN, local(2026, 12, 1, 2, 30), local(2026, 12, 2, 2, 29))


def test_ticks_that_were_missed_are_one() -> None:
    now = NOON + timedelta(days=40)
    assert cron_is_due("* * * * *", "UTC", NOON, now)
    assert not cron_is_due("* * * * *", "UTC", now, now + timedelta(seconds=59))


def test_a_time_that_summer_time_skips_comes_right_after_the_change() -> None:
    # 29 March 2026: 02:00 is 03:00.
    assert ticks("30 2 * * *", local(2026, 3, 28, 12), 2) == [local(2026, 3, 29, 3, 0), local(2026, 3, 30, 2, 30)]


def test_a_time_that_comes_twice_comes_once() -> None:
    # 25 October 2026: 03:00 is 02:00 again.
    assert ticks("30 2 * * *", local(2026, 10, 24, 12), 2) == [local(2026, 10, 25, 2, 30), local(2026, 10, 26, 2, 30)]
    # Also for who looks in the hour that comes for the second time.
    again = local(2026, 10, 25, 2, 10, fold=1)
    assert not cron_is_due("30 2 * * *", BERLIN, again, local(2026, 10, 25, 2, 50, fold=1))


def test_every_quarter_goes_on_through_the_hour_that_comes_twice() -> None:
    start = local(2026, 10, 25, 2, 0)
    assert ticks("*/15 * * * *", start, 8) == [start + timedelta(minutes=15 * n) for n in range(1, 9)]


EXPRESSIONS = st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "15 3 * * SUN", "0 0 1 * *", "0 12 31 * *"])
MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(EXPRESSIONS, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=40)))
def test_whoever_looks_later_finds_the_tick_too(expression: str, since: datetime, later: timedelta) -> None:
    tick = next_tick(expression, BERLIN, since)
    assert tick is not None
    assert tick > since
    assert not cron_is_due(expression, BERLIN, since, tick - timedelta(microseconds=1))
    assert cron_is_due(expression, BERLIN, since, tick + later)


@pytest.mark.parametrize("zone", ["Nowhere/Land", "", "/etc/passwd"])
def test_an_unknown_time_zone_is_named(zone: str) -> None:
    with pytest.raises(ValueError, match="time_zone"):
        next_tick("* * * * *", zone, NOON)
