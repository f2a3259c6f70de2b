"""What the demo plans: the same under the same seed, with something for every destination, and all its mishaps."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.demo.destinations import make_targets, subscribers
from pipeline.demo.events import AWKWARD_BODIES, HANGING_MAX, plan_events
from pipeline.demo.options import DESTINATIONS_MAX, DESTINATIONS_MIN


@pytest.mark.parametrize("count", [DESTINATIONS_MIN, 12, DESTINATIONS_MAX])
def test_there_are_as_many_destinations_as_asked_for_and_each_gets_an_event(count: int) -> None:
    targets = make_targets(count, seed=1)
    assert len({target.destination_id for target in targets}) == count
    assert len({target.secret for target in targets}) == count
    assert {type(target.behaviour).__name__ for target in targets} == {
        "Ok",
        "Throttling",
        "Flaky",
        "Hanging",
        "Rejecting",
        "AppliesThenDrops",
        "Slow",
    }
    plan = plan_events(max(50, count), targets, seed=1)
    reached = {name for event in plan if event.ends == "commit" for name in event.destinations}
    assert reached == {target.destination_id for target in targets}


@pytest.mark.parametrize("count", [0, DESTINATIONS_MIN - 1, DESTINATIONS_MAX + 1])
def test_other_numbers_of_destinations_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"not {count}"):
        make_targets(count, seed=1)


def test_the_same_seed_plans_the_same_and_another_does_not() -> None:
    targets = make_targets(12, seed=7)
    assert make_targets(12, seed=7) == targets
    plan = list(plan_events(500, targets, seed=7))
    assert list(plan_events(500, targets, seed=7)) == plan
    assert list(plan_events(500, targets, seed=8)) != plan


@pytest.mark.parametrize("seed", range(5))
def test_the_asked_for_number_commits_and_every_mishap_is_among_the_rest(seed: int) -> None:
    targets = make_targets(12, seed)
    plan = list(plan_events(2000, targets, seed))
    ends = Counter(event.ends for event in plan)
    assert ends["commit"] == 2000
    assert set(ends) == {"commit", "rollback", "failure", "disconnect"}
    assert 60 < len(plan) - 2000 < 150
    assert len({event.event_id for event in plan}) == len({event.asset for event in plan}) == len(plan)
    committed = [event for event in plan if event.ends == "commit"]
    assert any(event.is_readmitted for event in committed)
    assert any(event.delay_seconds is not None for event in committed)
    assert any(len(event.destinations) > 1 for event in committed if event.is_named)
    assert {event.destinations for event in plan if not event.is_named} == {tuple(subscribers(targets))}
    assert not any(event.is_readmitted for event in plan if event.ends != "commit")
    assert {body for _, body in AWKWARD_BODIES} <= {event.body for event in committed}


def test_most_goes_to_two_healthy_destinations_and_little_to_the_hanging_one() -> None:
    targets = make_targets(12, seed=1)
    counts = Counter(name for event in plan_events(5000, targets, seed=1) for name in event.destinations)
    healthy = [target.destination_id for target in targets if target.is_healthy]
    assert counts[healthy[0]] + counts[healthy[1]] > counts.total() / 2
    assert 0 < counts["hanging"] <= HANGING_MAX
