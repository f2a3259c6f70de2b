"""Plans: what a move repeats or skips, what is refused, and that an edited file is not believed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.offsets.applying import undo_refusals
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.group_standing import UNKNOWN, GroupStanding, Member
from pipeline.offsets.places import Bounds, MessageCount, Place
from pipeline.offsets.plan import PLAN_FORMAT, Move, Plan, is_consistent, move_to, plan_moves, refusals, with_count
from pipeline.offsets.plan_file import read_plan, write_plan
from pipeline.offsets.targets import ToEarliest, ToOffset

PLACE = Place("facts", 0)
BOUNDS = Bounds(start=10, end=100, stable_end=100)
IDLE = GroupStanding("g", "empty")


def move(requested: int, before: int | None = 50, bounds: Bounds = BOUNDS, *, is_fresh: bool = False) -> Move:
    return move_to(PLACE, requested, before=before, bounds=bounds, is_fresh=is_fresh)


def plan(*moves: Move) -> Plan:
    return Plan(
        format=PLAN_FORMAT,
        cluster_id="c1",
        group="g",
        group_state="empty",
        members=0,
        target="to offset 1",
        operator="op",
        reason="why",
        planned_at=datetime(2026, 11, 30, tzinfo=UTC),
        moves=moves,
    )


def why_not(made: Plan, **now: Any) -> list[str]:
    given = {
        "cluster_id": "c1",
        "standing": IDLE,
        "committed": {PLACE: 50},
        "bounds": {PLACE: BOUNDS},
        "allow_skip": False,
    }
    return refusals(made, **{**given, **now})


def test_a_rewind_repeats_at_most_its_span_and_skips_nothing() -> None:
    back = move(20)
    assert (back.delta, back.messages, back.skips_ahead, back.is_clamped) == (-30, MessageCount(0, 30), False, False)
    assert plan(back).rewound == MessageCount(0, 30)
    assert plan(back).skipped == MessageCount(0, 0)


def test_a_forward_move_skips_what_is_unread() -> None:
    ahead = move(80)
    assert (ahead.delta, ahead.messages, ahead.skips_ahead) == (30, MessageCount(0, 30), True)
    assert plan(ahead).skipped == MessageCount(0, 30)


def test_a_forward_move_over_markers_alone_skips_nothing() -> None:
    assert not with_count(move(80), MessageCount(0, 0)).skips_ahead
    assert with_count(move(80), MessageCount(1, 1)).skips_ahead


@pytest.mark.parametrize(("requested", "target"), [(0, 10), (10, 10), (100, 100), (10**12, 100), (-5, 10)])
def test_targets_are_brought_into_the_log(requested: int, target: int) -> None:
    clamped = move(requested)
    assert (clamped.requested, clamped.target, clamped.is_clamped) == (requested, target, requested != target)


def test_what_retention_took_is_said_and_not_counted_as_skipped() -> None:
    gone = move(10, before=3)
    assert gone.note is not None
    assert "offsets 3 to 9 are gone" in gone.note
    assert (gone.skips_ahead, gone.messages, gone.delta) == (False, MessageCount(0, 0), 7)
    assert move(30, before=3).messages == MessageCount(0, 20)


def test_a_commit_beyond_the_end_is_said() -> None:
    beyond = move(10, before=500)
    assert beyond.note is not None
    assert "beyond the log's end 100" in beyond.note
    assert beyond.messages == MessageCount(0, 90)


def test_a_fresh_group_is_seeded_anywhere_and_a_new_partition_of_a_known_one_is_not() -> None:
    assert not move(80, before=None, is_fresh=True).skips_ahead
    assert move(80, before=None).skips_ahead
    assert move(80, before=None).messages == MessageCount(0, 70)
    assert not move(10, before=None).skips_ahead
    assert move(80, before=None).delta is None


def test_moves_come_in_the_order_of_the_places() -> None:
    places = [Place("a", 1), Place("a", 2), Place("b", 0)]
    moves = plan_moves(
        ToOffset(60), places, committed={places[1]: 50}, bounds=dict.fromkeys(places, BOUNDS), at_time={}
    )
    assert [m.place for m in moves] == places
    assert [m.before for m in moves] == [None, 50, None]
    assert all(m.skips_ahead for m in moves)
    fresh = plan_moves(ToEarliest(), places, committed={}, bounds=dict.fromkeys(places, BOUNDS), at_time={})
    assert [m.target for m in fresh] == [10, 10, 10]
    assert not any(m.skips_ahead for m in fresh)


def test_a_plan_that_still_fits_is_not_refused() -> None:
    assert why_not(plan(move(20))) == []
    assert why_not(plan(move(80)), allow_skip=True) == []
    assert why_not(plan(move(50))) == []


@pytest.mark.parametrize(
    ("made", "now", "reason"),
    [
        (plan(move(20)), {"cluster_id": "c2"}, "for cluster c1, and this is c2"),
        (plan(move(20)), {"committed": {PLACE: 51}}, "50 was planned, 51 is committed"),
        (plan(move(20)), {"committed": {}}, "50 was planned, nothing is committed"),
        (plan(move(20, before=None, is_fresh=True)), {}, "nothing was planned, 50 is committed"),
        (plan(move(20)), {"bounds": {PLACE: Bounds(30, 100, 100)}}, "no longer in the log"),
        (plan(move(20)), {"bounds": {}}, "no longer in the log"),
        (plan(move(80)), {}, "skips at most 30 messages.*--allow-skip"),
        (plan(move(20)), {"standing": GroupStanding("g", "stable", (Member("c", "h", None, ()),))}, "c at h.*stop"),
        (plan(move(20)), {"standing": GroupStanding("g", "preparing rebalancing")}, "group g is active"),
        (plan(move(20)), {"standing": GroupStanding("g", "unknown")}, "group g is active"),
    ],
)
def test_what_no_longer_fits_is_refused(made: Plan, now: dict[str, Any], reason: str) -> None:
    (why,) = why_not(made, **now)
    assert re.search(reason, why), why


def test_every_reason_is_said_at_once() -> None:
    active = GroupStanding("g", "stable", (Member("c", "h", "static-1", ()),))
    assert len(why_not(plan(move(80)), standing=active, committed={PLACE: 49})) == 3


def test_long_lists_are_cut_and_counted() -> None:
    moves = [move_to(Place("t", n), 80, before=50, bounds=BOUNDS, is_fresh=False) for n in range(50)]
    (why,) = refusals(
        plan(*moves),
        cluster_id="c1",
        standing=IDLE,
        committed={m.place: 50 for m in moves},
        bounds={m.place: BOUNDS for m in moves},
        allow_skip=False,
    )
    assert "and 45 more" in why


def test_unknown_groups_are_inactive() -> None:
    assert not GroupStanding("g", UNKNOWN).is_active
    assert not GroupStanding("g", "empty").is_active
    assert GroupStanding("g", "empty", (Member("c", "h", None, ()),)).is_active


@given(
    requested=st.integers(-10, 200),
    before=st.none() | st.integers(0, 200),
    start=st.integers(0, 100),
    length=st.integers(0, 100),
    is_fresh=st.booleans(),
)
def test_every_move_is_consistent_and_within_the_log(
    requested: int, before: int | None, start: int, length: int, is_fresh: bool
) -> None:
    bounds = Bounds(start, start + length, start + length)
    made = move(requested, before, bounds, is_fresh=is_fresh and before is None)
    assert start <= made.target <= start + length
    assert made.affected.span == made.messages.at_most <= length
    assert made.skips_ahead == (made.target > made.read_from)
    assert is_consistent(plan(made))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", 90),
        ("target", 10**6),
        ("before", 80),
        ("requested", 5),
        ("read_from", 80),
        ("delta", 0),
        ("skips_ahead", False),
        ("is_clamped", True),
        ("messages", {"at_least": 0, "at_most": 31}),
        ("messages", {"at_least": 0, "at_most": -1}),
        ("log_end", 70),
    ],
)
def test_an_edited_plan_is_not_believed(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "a.plan"
    write_plan(plan(move(80)), path)
    assert read_plan(path) == plan(move(80))
    content = msgspec.json.decode(path.read_bytes())
    content["moves"][0][field] = value
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(OffsetsError, match="contradicts itself"):
        read_plan(path)


def test_a_partition_twice_is_not_believed() -> None:
    assert not is_consistent(plan(move(80), move(20)))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"format": "other"}'])
def test_what_is_no_plan(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(content)
    with pytest.raises(OffsetsError, match="is no plan"):
        read_plan(path)


def test_files_are_written_once_and_errors_name_them(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    write_plan(plan(move(20)), path)
    with pytest.raises(OffsetsError, match="is there already"):
        write_plan(plan(move(80)), path)
    assert read_plan(path) == plan(move(20))
    with pytest.raises(OffsetsError, match="cannot be written"):
        write_plan(plan(move(80)), tmp_path / "no" / "b.plan")
    with pytest.raises(OffsetsError, match="cannot be read"):
        read_plan(tmp_path / "none")


def test_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    write_plan(msgspec.structs.replace(plan(move(20)), format="outrider offsets plan 9"), path)
    with pytest.raises(OffsetsError, match=r"plan 9.*plan again"):
        read_plan(path)


def test_an_undo_needs_the_offsets_that_the_run_left() -> None:
    other = Place("facts", 1)
    to, left = {PLACE: 50, other: None}, {PLACE: 20, other: 5}

    def why(committed: dict[Place, int], *, even: bool = False, standing: GroupStanding = IDLE) -> list[str]:
        return undo_refusals(standing, to=to, left_by_run=left, committed=committed, even_if_moved=even)

    assert why({PLACE: 20, other: 5}) == []
    assert why({PLACE: 50}) == []  # a run that did nothing: undone already
    (moved,) = why({PLACE: 21, other: 5})
    assert "20 -> 21" in moved
    assert why({PLACE: 21, other: 5}, even=True) == []
    assert len(why({PLACE: 21}, standing=GroupStanding("g", "stable"))) == 2
    assert len(why({PLACE: 21}, standing=GroupStanding("g", "stable"), even=True)) == 1
