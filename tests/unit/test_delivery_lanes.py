"""Lanes in virtual time: who starts, who waits, who is parked, and that limits hold whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.delivery.lanes import IDLE_SECONDS, PARK_SECONDS_MAX, Lanes, Limits, Parked, ParkReason

FAST = Limits(start_rate_per_second=10_000.0, burst=10_000, concurrency=1000)


def make_lanes(*, ceiling=100, depth=50, park_after_seconds=1.0) -> Lanes[str]:
    return Lanes(ceiling=ceiling, depth=depth, park_after_seconds=park_after_seconds)


def start_all(lanes: Lanes[str], now: float) -> list[str]:
    items = []
    while (start := lanes.take(now)) is not None:
        items.append(start[1])
    return items


def fill(lanes: Lanes[str], destination: str, count: int, now: float = 0.0) -> list[Parked[str]]:
    """Admit that many; the answer is what was parked at once."""
    answers = [lanes.admit(destination, f"{destination}{n}", now) for n in range(count)]
    return [answer for answer in answers if answer is not None]


def test_nothing_starts_before_the_limits_are_known():
    lanes = make_lanes()
    fill(lanes, "a", 1)
    assert lanes.unconfigured() == ["a"]
    assert start_all(lanes, 0.0) == []
    lanes.configure("a", FAST, 0.0)
    assert start_all(lanes, 0.0) == ["a0"]
    assert lanes.unconfigured() == []


def test_lanes_take_turns_and_keep_their_order():
    lanes = make_lanes()
    for name in ("a", "b", "c"):
        fill(lanes, name, 3)
        lanes.configure(name, FAST, 0.0)
    assert start_all(lanes, 0.0) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_the_ceiling_holds_over_all_lanes():
    lanes = make_lanes(ceiling=8)
    for name in "abcdefghij":
        fill(lanes, name, 10)
        lanes.configure(name, FAST, 0.0)
    assert len(start_all(lanes, 0.0)) == 8
    assert lanes.in_flight == 8
    lanes.finished("a", 0.0, duration_seconds=0.01)
    assert len(start_all(lanes, 0.0)) == 1


def test_a_lane_that_hangs_leaves_places_for_the_others():
    lanes = make_lanes(ceiling=32, depth=1000)
    fill(lanes, "hangs", 500)
    lanes.configure("hangs", FAST, 0.0)
    assert len(start_all(lanes, 0.0)) == 16
    fill(lanes, "healthy", 4)
    lanes.configure("healthy", FAST, 0.0)
    assert start_all(lanes, 0.0) == ["healthy0", "healthy1", "healthy2", "healthy3"]


def test_a_lane_that_is_short_of_places_goes_on_when_another_gives_one_back():
    lanes = make_lanes(ceiling=32, depth=1000)
    for name in ("first", "second"):
        fill(lanes, name, 100)
        lanes.configure(name, FAST, 0.0)
        start_all(lanes, 0.0)
    held = lanes.in_flight
    assert held < 32
    lanes.finished("first", 0.1, duration_seconds=0.1)
    assert start_all(lanes, 0.1) == ["second8"]


def test_concurrency_bounds_a_lane_and_an_end_lets_the_next_start():
    lanes = make_lanes()
    fill(lanes, "a", 5)
    lanes.configure("a", Limits(1000.0, 1000, concurrency=2), 0.0)
    assert start_all(lanes, 0.0) == ["a0", "a1"]
    assert lanes.next_time() is None  # no time brings it on, only an end
    lanes.finished("a", 0.5, duration_seconds=0.5)
    assert start_all(lanes, 0.5) == ["a2"]


def test_the_rate_is_kept_and_the_next_time_is_told():
    lanes = make_lanes()
    fill(lanes, "a", 5)
    lanes.configure("a", Limits(4.0, 2, concurrency=100), 0.0)
    assert start_all(lanes, 0.0) == ["a0", "a1"]
    assert lanes.next_time() == pytest.approx(0.25)
    assert start_all(lanes, 0.2) == []
    assert start_all(lanes, 0.25) == ["a2"]
    assert start_all(lanes, 0.75) == ["a3", "a4"]


def test_what_the_rate_does_not_take_in_time_is_parked_along_the_rate():
    lanes = make_lanes(depth=1000)
    fill(lanes, "a", 1)
    lanes.configure("a", Limits(10.0, 5, concurrency=100), 0.0)
    parked = fill(lanes, "a", 20)
    # Five tokens and ten that come within the second; one was waiting already.
    assert len(parked) == 6
    assert {p.reason for p in parked} == {ParkReason.RATE}
    assert [p.delay_seconds for p in parked] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])


def test_a_lane_holds_no_more_than_its_depth():
    lanes = make_lanes(depth=7)
    parked = fill(lanes, "a", 10)
    assert (lanes.waiting, len(parked)) == (7, 3)
    assert {p.reason for p in parked} == {ParkReason.LANE_FULL}


def test_a_destination_that_hangs_is_parked_once_it_shows():
    lanes = make_lanes(depth=1000)
    fill(lanes, "a", 100)
    lanes.configure("a", Limits(1000.0, 1000, concurrency=4), 0.0)
    assert len(start_all(lanes, 0.0)) == 4
    assert list(lanes.surplus(0.0)) == []  # nothing is known yet
    parked = list(lanes.surplus(2.0))
    # It has stood still for two seconds with four places: no more than two starts in the next second.
    assert len(parked) == 94
    assert {p.reason for p in parked} == {ParkReason.CONCURRENCY}
    assert [p.item for p in parked] == [f"a{n}" for n in range(6, 100)]
    delays = [p.delay_seconds for p in parked]
    assert delays == sorted(delays)
    assert delays[0] == 1.0
    assert delays[1] - delays[0] == pytest.approx(0.5)


def test_a_destination_that_hangs_on_its_share_of_the_places_is_parked_too():
    lanes = make_lanes(ceiling=32, depth=1000)
    fill(lanes, "a", 100)
    lanes.configure("a", Limits(1000.0, 1000, concurrency=64), 0.0)
    assert len(start_all(lanes, 0.0)) == 16
    parked = list(lanes.surplus(60.0))
    # Sixty-four places, if it had them, would start one in the next second.
    assert len(parked) == 83
    assert {p.reason for p in parked} == {ParkReason.CONCURRENCY}


def test_a_destination_that_comes_back_is_not_parked_for_its_past():
    lanes = make_lanes(depth=1000)
    fill(lanes, "a", 8)
    lanes.configure("a", Limits(1000.0, 1000, concurrency=4), 0.0)
    start_all(lanes, 0.0)
    for _ in range(4):
        lanes.finished("a", 0.05, duration_seconds=0.05)
    assert len(start_all(lanes, 0.05)) == 4
    assert fill(lanes, "a", 50, now=0.1) == []


def test_no_delay_is_longer_than_the_bound():
    lanes = make_lanes(depth=1)
    fill(lanes, "a", 1)
    lanes.configure("a", Limits(0.001, 1, concurrency=1), 0.0)
    parked = fill(lanes, "a", 100)
    assert max(p.delay_seconds for p in parked) == PARK_SECONDS_MAX


@pytest.mark.parametrize("reason", [ParkReason.DISABLED, ParkReason.NO_SECRET])
def test_a_closed_destination_parks_everything_with_its_reason(reason):
    lanes = make_lanes()
    fill(lanes, "a", 3)
    lanes.configure("a", FAST, 0.0)
    lanes.configure("a", Limits(1.0, 1, 1, closed=reason), 0.0)
    assert start_all(lanes, 0.0) == []
    assert [(p.item, p.reason) for p in lanes.surplus(0.0)] == [("a0", reason), ("a1", reason), ("a2", reason)]
    assert [p.reason for p in fill(lanes, "a", 1)] == [reason]
    assert lanes.waiting == 0


def test_a_start_that_the_ledger_paces_is_first_again_after_the_wait():
    lanes = make_lanes()
    fill(lanes, "a", 3)
    lanes.configure("a", FAST, 0.0)
    destination, item = lanes.take(0.0)
    lanes.defer(destination, item, ParkReason.RATE, 0.3, 0.0)
    assert start_all(lanes, 0.0) == []
    assert lanes.next_time() == pytest.approx(0.3)
    assert start_all(lanes, 0.3) == ["a0", "a1", "a2"]


def test_a_long_wait_told_by_the_ledger_parks_the_whole_lane_beyond_it():
    lanes = make_lanes()
    fill(lanes, "a", 3)
    lanes.configure("a", Limits(10.0, 10, 10), 0.0)
    destination, item = lanes.take(0.0)
    lanes.defer(destination, item, ParkReason.RATE, 20.0, 0.0)
    parked = list(lanes.surplus(0.0))
    assert [p.item for p in parked] == ["a0", "a1", "a2"]
    assert [p.delay_seconds for p in parked] == pytest.approx([20.0, 20.1, 20.2])


def test_what_the_ledger_says_of_the_whole_lane_holds_it_and_ends_with_its_word():
    lanes = make_lanes()
    fill(lanes, "a", 3)
    lanes.configure("a", FAST, 0.0)
    lanes.hold("a", ParkReason.BREAKER, 30.0, 0.0)
    assert start_all(lanes, 0.0) == []
    assert [(p.item, p.reason) for p in lanes.surplus(0.0)] == [(f"a{n}", ParkReason.BREAKER) for n in range(3)]
    assert [p.reason for p in fill(lanes, "a", 1)] == [ParkReason.BREAKER]
    # The newest word counts, also where it is a shorter time.
    lanes.hold("a", ParkReason.BREAKER, 0.5, 1.0)
    lanes.admit("a", "waits", 1.0)
    assert start_all(lanes, 1.4) == []
    assert start_all(lanes, 1.5) == ["waits"]
    lanes.hold("a", ParkReason.THROTTLED, 0.9, 2.0)
    lanes.admit("a", "goes", 2.0)
    lanes.hold("a", None, 0.0, 2.1)
    assert start_all(lanes, 2.1) == ["goes"]


def test_of_two_holds_the_longer_one_counts():
    lanes = make_lanes()
    fill(lanes, "a", 2)
    lanes.configure("a", FAST, 0.0)
    first, second = lanes.take(0.0), lanes.take(0.0)
    lanes.defer(*first, ParkReason.THROTTLED, 20.0, 0.0)
    lanes.defer(*second, ParkReason.RATE, 0.1, 0.0)
    assert {p.reason for p in lanes.surplus(0.0)} == {ParkReason.THROTTLED}


def test_a_busy_destination_gives_its_token_back_and_is_parked_when_it_stays_busy():
    lanes = make_lanes()
    fill(lanes, "a", 1)
    lanes.configure("a", Limits(0.1, 2, 1), 0.0)
    for now in (0.0, 0.5, 1.0, 1.5):
        destination, item = lanes.take(now)
        assert item == "a0"
        lanes.defer(destination, item, ParkReason.CONCURRENCY, 0.0, now)
        assert lanes.take(now) is None  # not at once again
    assert [(p.item, p.reason) for p in lanes.surplus(2.0)] == [("a0", ParkReason.CONCURRENCY)]


def test_a_start_that_did_not_happen_gives_its_token_back():
    lanes = make_lanes()
    fill(lanes, "a", 3)
    lanes.configure("a", Limits(0.001, 1, 10), 0.0)
    assert start_all(lanes, 0.0) == ["a0"]
    lanes.finished("a", 0.0)
    assert start_all(lanes, 0.0) == ["a1"]
    lanes.finished("a", 0.0, duration_seconds=0.1)
    assert start_all(lanes, 0.0) == []


def test_new_limits_hold_at_once():
    lanes = make_lanes()
    fill(lanes, "a", 10)
    lanes.configure("a", Limits(1000.0, 1000, concurrency=1), 0.0)
    assert start_all(lanes, 0.0) == ["a0"]
    lanes.configure("a", Limits(1000.0, 1000, concurrency=3), 0.0)
    assert start_all(lanes, 0.0) == ["a1", "a2"]


def test_what_is_lost_leaves_and_the_rest_stays_in_order():
    lanes = make_lanes()
    fill(lanes, "a", 6)
    lanes.configure("a", FAST, 0.0)
    lost = lanes.remove(lambda item: item in {"a1", "a4"})
    assert sorted(lost) == ["a1", "a4"]
    assert lanes.waiting == 4
    assert start_all(lanes, 0.0) == ["a0", "a2", "a3", "a5"]


def test_idle_lanes_are_forgotten_and_busy_ones_are_not():
    lanes = make_lanes()
    for name in ("idle", "waits", "flies"):
        fill(lanes, name, 1)
    lanes.configure("idle", FAST, 0.0)
    lanes.configure("flies", FAST, 0.0)
    assert start_all(lanes, 0.0) == ["idle0", "flies0"]
    lanes.finished("idle", 1.0, duration_seconds=1.0)
    assert lanes.forget_idle(1.0 + IDLE_SECONDS) == []
    assert lanes.forget_idle(1.1 + IDLE_SECONDS) == ["idle"]
    assert sorted(lanes.destinations()) == ["flies", "waits"]


def test_a_lane_without_a_destination_gives_its_items_back():
    lanes = make_lanes()
    fill(lanes, "a", 2)
    assert lanes.close("a") == ["a0", "a1"]
    assert (len(lanes), lanes.waiting) == (0, 0)


NAMES = st.sampled_from(["a", "b", "c"])
LIMITS = st.builds(
    Limits,
    start_rate_per_second=st.floats(0.5, 200),
    burst=st.integers(1, 20),
    concurrency=st.integers(1, 10),
    closed=st.sampled_from([None, None, None, ParkReason.DISABLED]),
)
CEILING, DEPTH = 12, 15


class AnyTraffic(RuleBasedStateMachine):
    """Random traffic, answers, refusals, losses and changes of limits."""

    def __init__(self):
        super().__init__()
        self.lanes = Lanes(ceiling=CEILING, depth=DEPTH, park_after_seconds=1.0)
        self.now = 0.0
        self.number = 0
        self.limits: dict[str, Limits] = {}
        self.inside: set[int] = set()  # waiting or in flight
        self.flying: list[tuple[str, int]] = []
        self.starts: dict[str, list[float]] = {}  # since the limits last changed, as if the bucket had been full then

    def account_parked(self, parked):
        assert parked.item in self.inside
        self.inside.remove(parked.item)
        assert 0 < parked.delay_seconds <= PARK_SECONDS_MAX

    @rule(name=NAMES, count=st.integers(1, 30))
    def admit(self, name, count):
        for _ in range(count):
            self.number += 1
            self.inside.add(self.number)
            parked = self.lanes.admit(name, self.number, self.now)
            if parked is not None:
                assert parked.item == self.number
                self.account_parked(parked)

    @rule(name=NAMES, limits=LIMITS)
    def configure(self, name, limits):
        if name in self.lanes.destinations():
            self.lanes.configure(name, limits, self.now)
            self.limits[name] = limits
            self.starts[name] = []

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def take(self):
        while (start := self.lanes.take(self.now)) is not None:
            name, item = start
            assert item in self.inside
            self.flying.append((name, item))
            assert self.limits[name].closed is None
            assert sum(n == name for n, _ in self.flying) <= self.limits[name].concurrency
            self.starts[name].append(self.now)

    @precondition(lambda self: self.flying)
    @rule(pick=st.integers(0, 1000), seconds=st.floats(0, 20))
    def finish(self, pick, seconds):
        name, item = self.flying.pop(pick % len(self.flying))
        self.inside.remove(item)
        self.lanes.finished(name, self.now, duration_seconds=seconds)

    @precondition(lambda self: self.flying)
    @rule(pick=st.integers(0, 1000), seconds=st.floats(0, 5))
    def defer(self, pick, seconds):
        name, item = self.flying.pop(pick % len(self.flying))
        self.lanes.defer(name, item, ParkReason.RATE, seconds, self.now)

    @rule()
    def park_surplus(self):
        for parked in self.lanes.surplus(self.now):
            self.account_parked(parked)

    @rule(divisor=st.integers(2, 5))
    def lose(self, divisor):
        self.inside -= set(self.lanes.remove(lambda item: item % divisor == 0))

    @rule()
    def forget(self):
        for name in self.lanes.forget_idle(self.now):
            self.limits.pop(name, None)
            self.starts.pop(name, None)

    @invariant()
    def nothing_is_lost_and_the_bounds_hold(self):
        assert self.lanes.in_flight == len(self.flying) <= CEILING
        assert self.lanes.waiting + len(self.flying) == len(self.inside)
        # A deferral may bring a lane above its depth by what was in flight.
        assert self.lanes.waiting <= 3 * DEPTH + CEILING

    @invariant()
    def starts_keep_the_rate(self):
        for name, times in self.starts.items():
            limits = self.limits[name]
            for first in range(len(times)):
                allowed = limits.burst + limits.start_rate_per_second * (times[-1] - times[first])
                assert len(times) - first <= allowed + 1e-6

    def teardown(self):
        """However it went: without further limits, everything that is left comes out, each once."""
        for name in self.lanes.destinations():
            self.lanes.configure(name, FAST, self.now)
        for _ in range(200):
            self.now += 10.0
            for parked in self.lanes.surplus(self.now):
                self.account_parked(parked)
            while (start := self.lanes.take(self.now)) is not None:
                self.flying.append(start)
            for name, item in self.flying:
                self.lanes.finished(name, self.now, duration_seconds=0.001)
                self.inside.remove(item)
            self.flying.clear()
        assert self.inside == set()


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
