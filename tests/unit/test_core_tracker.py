"""Commits never pass an open offset, whatever the order of completion."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.core.tracker import CompletionTracker


def test_nothing_to_commit_before_anything_was_fetched():
    tracker = CompletionTracker(generation=3)
    assert (tracker.generation, tracker.next_offset, tracker.unsettled) == (3, 0, 0)


def test_the_lowest_open_offset_holds_the_commit():
    tracker = CompletionTracker(1)
    tracker.fetched([10, 11, 12], position=13)
    assert all(tracker.admit(offset) for offset in (10, 11, 12))
    assert tracker.done(12)
    assert tracker.done(11)
    assert tracker.next_offset == 10
    assert tracker.done(10)
    assert tracker.next_offset == 13


def test_a_message_that_is_dropped_on_the_way_holds_the_commit():
    tracker = CompletionTracker(1)
    tracker.fetched([1, 2], position=3)
    tracker.admit(2)
    tracker.done(2)
    assert tracker.next_offset == 1


def test_markers_are_passed_over_only_when_nothing_before_them_is_open():
    tracker = CompletionTracker(1)
    tracker.fetched([5], position=7)  # 6 is a marker
    assert tracker.next_offset == 5
    tracker.admit(5)
    tracker.done(5)
    assert tracker.next_offset == 7
    tracker.fetched([], position=9)
    assert tracker.next_offset == 9


def test_a_message_that_is_read_again_is_admitted_once():
    tracker = CompletionTracker(1)
    tracker.fetched([1, 2], position=3)
    assert tracker.admit(1)
    tracker.fetched([1, 2], position=3)
    assert not tracker.admit(1)
    assert tracker.admit(2)
    tracker.done(1)
    tracker.fetched([1, 2], position=3)
    assert not tracker.admit(1)
    assert tracker.unsettled == 1


def test_what_was_never_fetched_is_neither_admitted_nor_done():
    tracker = CompletionTracker(1)
    tracker.fetched([4], position=6)
    assert not tracker.admit(5)
    assert not tracker.done(5)
    assert not tracker.done(3)


class AnyOrder(RuleBasedStateMachine):
    """Against the plain definition: sets of offsets, looked at as a whole."""

    @initialize(start=st.integers(0, 1000))
    def begin(self, start):
        self.tracker = CompletionTracker(1)
        self.position = start
        self.log: list[int] = []  # offsets with a message, ever fetched
        self.settled: set[int] = set()
        self.committed = 0

    @rule(pattern=st.lists(st.booleans(), max_size=8))
    def fetch(self, pattern):
        """True is a message, False an offset without one."""
        offsets = [self.position + n for n, is_message in enumerate(pattern) if is_message]
        self.position += len(pattern)
        self.log += offsets
        self.tracker.fetched(offsets, self.position)

    @rule(back=st.integers(0, 20))
    def read_again(self, back):
        self.tracker.fetched(self.log[-back:] if back else [], self.position)

    @rule(pick=st.integers(0, 10_000))
    def finish(self, pick):
        if not self.log:
            return
        offset = self.log[pick % len(self.log)]
        first_time = offset not in self.settled
        assert self.tracker.admit(offset) is first_time
        assert self.tracker.done(offset) is first_time
        self.settled.add(offset)

    @invariant()
    def commits_nothing_that_is_open(self):
        if not hasattr(self, "tracker"):
            return
        open_offsets = [offset for offset in self.log if offset not in self.settled]
        assert self.tracker.unsettled == len(open_offsets)
        if self.log:
            assert self.tracker.next_offset == min(open_offsets, default=self.position)
        assert self.tracker.next_offset >= self.committed
        self.committed = self.tracker.next_offset


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
