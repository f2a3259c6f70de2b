"""A chain of hashes without a database: whatever happens to one link, or to a stretch, is told with its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.chain import GENESIS, Entry, Finding, Known, Tombstone, check_chain, link, microseconds

LENGTH = 20


def chain(length: int = LENGTH) -> list[Entry]:
    entries, before = [], GENESIS
    for seq in range(1, length + 1):
        content = ("t", 0, seq, f"dlv_{seq}", None, True, ["k"])
        before = link(before, "record", content)
        entries.append(Entry(seq, seq * 2, content, before))
    return entries


def known(entries: list[Entry], **more: object) -> Known:
    return replace(Known("t", 0, (entries[-1].chain_seq, entries[-1].hash)), **more)


def check(facts: Known, entries: list[Entry]) -> list[Finding]:
    return list(check_chain(facts, entries))


def test_a_link_is_the_hash_of_the_one_before_and_a_json_array() -> None:
    # By other means: (head -c 32 /dev/zero; printf %s '["record", "t", 1, null, true, ["k", "\\""], "ä"]') | sha256sum
    expected = "00d28baba83d5e538795791d292919d0f3627a8b01be796c8e2200412688ec75"
    assert link(GENESIS, "record", ("t", 1, None, True, ["k", '"'], "ä")).hex() == expected


@given(length=st.integers(1, 30))
def test_an_untouched_chain_is_intact(length: int) -> None:
    entries = chain(length)
    assert check(known(entries, anchors={e.chain_seq: e.hash for e in entries[::7]}), entries) == []


def test_nothing_recorded_is_intact() -> None:
    assert check(Known("t", 0, None), []) == []
    assert check(Known("t", 0, (0, GENESIS)), []) == []


@given(seq=st.integers(1, LENGTH))
def test_any_changed_link_is_told_with_its_place(seq: int) -> None:
    entries = chain()
    entries[seq - 1] = replace(entries[seq - 1], content=("t", 0, seq, "forged"))
    assert [(f.defect, f.first_seq, f.last_seq) for f in check(known(chain()), entries)] == [("changed", seq, seq)]


@given(first=st.integers(1, LENGTH), length=st.integers(1, LENGTH))
def test_any_removed_stretch_is_told_with_its_place(first: int, length: int) -> None:
    last = min(LENGTH, first + length - 1)
    left = [e for e in chain() if not first <= e.chain_seq <= last]
    defect = "cut" if last == LENGTH else "missing"
    assert [(f.defect, f.first_seq, f.last_seq) for f in check(known(chain()), left)] == [(defect, first, last)]


@given(order=st.permutations(range(LENGTH)))
def test_links_in_another_order_are_told(order: list[int]) -> None:
    """Their contents changed places, each with the number of its new place."""
    entries = chain()
    moved = [replace(entries[place], content=entries[other].content) for place, other in enumerate(order)]
    assert bool(check(known(entries), moved)) == (list(order) != list(range(LENGTH)))


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def buried(first: int, last: int, **more: object) -> tuple[Known, list[Entry]]:
    """A chain of which retention took a stretch, and its tombstone at the end."""
    entries = chain()
    stone = Tombstone(
        topic="t",
        partition=0,
        chain_seq=LENGTH + 1,
        from_seq=first,
        to_seq=last,
        first_offset=2 * first,
        last_offset=2 * last,
        first_logged_at=NOW - timedelta(days=50),
        last_logged_at=NOW - timedelta(days=40),
        before_hash=entries[first - 2].hash if first > 1 else GENESIS,
        after_hash=entries[last - 1].hash,
        removed_at=NOW,
        removed_by="w",
        keep_days=31,
        hash=b"",
    )
    stone = replace(stone, hash=link(entries[-1].hash, "tombstone", stone.content))
    stone = replace(stone, **more)
    left = [e for e in entries if not first <= e.chain_seq <= last]
    return replace(known(entries), tip=(stone.chain_seq, stone.hash), tombstones=(stone,)), left


@given(first=st.integers(1, LENGTH), length=st.integers(1, LENGTH))
def test_what_retention_took_is_no_finding(first: int, length: int) -> None:
    facts, left = buried(first, min(LENGTH, first + length - 1))
    assert check(facts, left) == []


@pytest.mark.parametrize(
    ("change", "defects"),
    [
        ({"removed_by": "x"}, {"changed"}),
        ({"to_seq": 7}, {"missing", "changed"}),
        ({"before_hash": b"x"}, {"unlinked", "changed"}),
        ({"after_hash": b"x"}, {"changed"}),
        ({"last_logged_at": NOW - timedelta(days=3)}, {"forged_tombstone", "changed"}),
    ],
)
def test_a_tombstone_that_was_changed_is_told(change: dict[str, object], defects: set[str]) -> None:
    facts, left = buried(5, 8, **change)
    assert {f.defect for f in check(facts, left)} == defects


def test_the_row_before_a_tombstone_is_held_by_it() -> None:
    facts, left = buried(5, 8)
    content = ("t", 0, 4, "forged")
    left[3] = replace(left[3], content=content, hash=link(left[2].hash, "record", content))
    assert [(f.defect, f.first_seq) for f in check(facts, left)] == [("unlinked", 4)]


def test_behind_a_gap_an_anchor_lets_the_next_link_be_checked() -> None:
    entries = chain()
    left = [e for e in entries if not 5 <= e.chain_seq <= 8]
    left[4] = replace(left[4], content=("t", 0, 9, "forged"))
    assert [f.defect for f in check(known(entries), left)] == ["missing"]
    facts = known(entries, anchors={8: entries[7].hash})
    assert [(f.defect, f.first_seq) for f in check(facts, left)] == [("missing", 5), ("changed", 9)]


def test_microseconds_are_exact() -> None:
    assert microseconds(datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)) == 253_402_300_799_999_999
    assert microseconds(datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)) == -1
