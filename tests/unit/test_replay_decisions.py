"""What a replay decides without asking anybody: its pace, its ranges, its plan, and what is in quarantine already."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger.replay import Choice
from pipeline.ledger.replay_plan import Count
from pipeline.offsets.places import Bounds, Place, Stretch
from pipeline.replay.errors import ReplayError
from pipeline.replay.id_list import read_ids
from pipeline.replay.pace import Pace
from pipeline.replay.plan import PLAN_FORMAT, Plan, checked_plan, expected_seconds, read_plan, sealed, write_plan
from pipeline.replay.quarantining import Origins
from pipeline.replay.ranges import ByTime, by_offsets, by_time, parse_offsets

PLACE = Place("t.dispatch", 0)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@given(
    rate=st.floats(0.01, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 5_000)), min_size=1, max_size=60),
)
def test_a_run_never_dispatches_faster_than_its_rate(rate: float, steps: list[tuple[float, int]]) -> None:
    now, spent = 1_000.0, 0
    pace = Pace(rate, now)
    for seconds, wanted in steps:
        now += seconds
        taken = min(wanted, pace.allowed(now))
        pace.spend(taken)
        spent += taken
        assert spent <= 1 + max(1.0, rate) + rate * (now - 1_000.0)


def test_a_slow_run_says_when_its_next_may_go() -> None:
    pace = Pace(0.5, 0.0)
    assert pace.allowed(0.0) == 1
    pace.spend(1)
    assert pace.allowed(0.0) == 0
    assert pace.wait_seconds == pytest.approx(2.0)
    assert pace.allowed(2.0) == 1


def test_ranges_by_offset_are_clamped_and_say_so() -> None:
    bounds = Bounds(start=100, end=205, stable_end=200)
    whole = by_offsets(PLACE, bounds, None, None)
    assert (whole.begin, whole.end, whole.removed, whole.note) == (100, 200, 0, None)
    cut = by_offsets(PLACE, bounds, 60, 500)
    assert (cut.begin, cut.end, cut.removed) == (100, 200, 40)
    assert cut.note == "retention has removed the first 40 offsets of the range; it ends at 200, where the log does"
    gone = by_offsets(PLACE, bounds, 10, 50)
    assert (gone.begin, gone.end, gone.removed) == (100, 100, 40)


def test_ranges_by_time_tell_where_older_messages_are_gone() -> None:
    bounds = Bounds(start=100, end=200, stable_end=200)
    inside = by_time(PLACE, bounds, ByTime(NOON, None), since=150, until=None)
    assert (inside.begin, inside.end, inside.note) == (150, 200, None)
    at_the_start = by_time(PLACE, bounds, ByTime(NOON, None), since=100, until=None)
    assert at_the_start.note is not None
    nothing_as_new = by_time(PLACE, bounds, ByTime(NOON, None), since=None, until=None)
    assert nothing_as_new.begin == nothing_as_new.end == 200
    before_all = by_time(PLACE, bounds, ByTime(None, NOON), since=None, until=100)
    assert before_all.begin == before_all.end == 100
    assert by_time(PLACE, Bounds(0, 9, 9), ByTime(None, None), since=None, until=None).note is None


@pytest.mark.parametrize("text", ["0", "0:5", "x:1-2", "0:2-2", "0:1-2,3", "0:-1-2"])
def test_offsets_that_are_no_range_are_refused(text: str) -> None:
    with pytest.raises(ReplayError):
        parse_offsets([text])
    with pytest.raises(ReplayError, match="two ranges"):
        parse_offsets(["0:1-2", "0:3-4"])


def count(destination_id: str, deliveries: int, verdict: str = "replay") -> Count:
    return Count(destination_id=destination_id, state="dead", age="under 1 h", verdict=verdict, deliveries=deliveries)


def test_the_slower_of_run_and_destination_decides_how_long_it_takes() -> None:
    counts = [count("a", 100), count("b", 10), count("a", 9_999, "succeeded")]
    assert expected_seconds(counts, 10.0, 0.5, {"a": 1_000.0, "b": 1_000.0}) == (11.0, None)
    assert expected_seconds(counts, 10.0, 0.5, {"a": 1_000.0, "b": 0.5}) == (40.0, "b")
    assert expected_seconds([], 10.0, 0.5, {}) == (0.0, None)


def plan() -> Plan:
    return sealed(
        Plan(
            format=PLAN_FORMAT,
            cluster_id=None,
            source="dead",
            origin="dead letters",
            ranges=(),
            until=NOON,
            choice=Choice(mode="failed"),
            id_list=None,
            rate_per_second=100.0,
            share=0.5,
            read=None,
            counts=(count("a", 3), count("a", 2, "cancelled")),
            sample=(),
            expected_seconds=0.1,
            slowest_destination=None,
        )
    )


def test_a_plan_is_read_back_as_it_was_written_and_never_believed_when_edited(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_plan(plan(), path)
    assert read_plan(path) == plan()
    assert (plan().replayed, plan().left) == (3, {"cancelled": 2})
    with pytest.raises(ReplayError, match="there already"):
        write_plan(plan(), path)
    path.write_text(path.read_text().replace("100.0", "900.0"))
    with pytest.raises(ReplayError, match="was changed after"):
        read_plan(path)
    path.write_text("{}")
    with pytest.raises(ReplayError, match="is no plan"):
        read_plan(path)
    # A run row keeps it as jsonb, which orders names anew.
    reordered = dict(sorted(msgspec.to_builtins(plan()).items()))
    assert checked_plan(msgspec.json.encode(reordered)) == plan()


def test_a_list_of_ids_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes(b"a\n\n b \r\na\nc")
    assert list(read_ids(path)) == ["a", "b", "a", "c"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ReplayError, match="cannot be read"):
        list(read_ids(path))
    path.write_bytes(b"x" * 2_000)
    with pytest.raises(ReplayError, match="line 1"):
        list(read_ids(path))


@given(st.lists(st.integers(-5, 40)))
def test_origins_know_exactly_what_was_added_within_the_range(offsets: list[int]) -> None:
    origins = Origins({PLACE: Stretch(0, 30)})
    for offset in offsets:
        origins.add(PLACE, offset)
        origins.add(Place("other", 0), offset)
    for offset in range(-5, 41):
        assert origins.has(PLACE, offset) == (offset in offsets and 0 <= offset < 30)
