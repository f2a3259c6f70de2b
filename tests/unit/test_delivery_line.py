"""Turns in a lane: first tries ahead of retries, and neither for ever last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delivery.line import FIRSTS_BEFORE_RETRY, Line


def line_of(*items: str) -> Line[str]:
    line: Line[str] = Line(lambda item: item.startswith("r"))
    for item in items:
        line.append(item)
    return line


def drained(line: Line[str]) -> list[str]:
    return [line.pop() for _ in range(len(line))]


def test_first_tries_overtake_retries_and_a_retry_goes_after_some_of_them():
    line = line_of("r1", "r2", *(f"f{n}" for n in range(1, 8)))
    assert drained(line) == ["f1", "f2", "f3", "r1", "f4", "f5", "f6", "r2", "f7"]


def test_either_goes_alone_in_its_order():
    assert drained(line_of("r1", "r2", "r3")) == ["r1", "r2", "r3"]
    assert drained(line_of("f1", "f2", "f3", "f4", "f5")) == ["f1", "f2", "f3", "f4", "f5"]


def test_first_tries_that_went_before_a_retry_came_do_not_count_against_later_ones():
    line = line_of("f1", "f2", "f3")
    assert [line.pop(), line.pop()] == ["f1", "f2"]
    line.append("r1")
    for number in range(4, 8):
        line.append(f"f{number}")
    assert drained(line) == ["f3", "f4", "f5", "r1", "f6", "f7"]


def test_what_is_put_back_is_the_first_of_its_class():
    line = line_of("f1", "f2", "r1", "r2")
    line.put_back(line.pop())
    assert line.pop() == "f1"
    line.remove(lambda item: item.startswith("f"))
    line.put_back(line.pop())
    assert drained(line) == ["r1", "r2"]


def test_an_empty_line_has_neither_a_next_nor_a_last():
    with pytest.raises(IndexError):
        line_of().pop()
    with pytest.raises(IndexError):
        line_of().pop_last()


@given(kinds=st.lists(st.sampled_from("fr"), min_size=1, max_size=40), gone=st.integers(0, 10))
def test_the_last_turn_is_the_one_that_would_come_last(kinds, gone):
    items = [f"{kind}{n}" for n, kind in enumerate(kinds)]
    line, other = line_of(*items), line_of(*items)
    for _ in range(min(gone, len(items) - 1)):
        assert line.pop() == other.pop()
    assert line.pop_last() == drained(other)[-1]


@given(st.lists(st.sampled_from("fr"), min_size=1, max_size=60))
def test_nothing_is_lost_and_no_retry_waits_for_more_than_its_share(kinds):
    items = [f"{kind}{n}" for n, kind in enumerate(kinds)]
    order = drained(line_of(*items))
    assert sorted(order) == sorted(items)
    for place, item in enumerate(order):
        if item.startswith("r"):
            earlier_retries = sum(other.startswith("r") for other in order[:place])
            assert place <= (earlier_retries + 1) * FIRSTS_BEFORE_RETRY + earlier_retries
