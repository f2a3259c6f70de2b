"""The state table: nothing but its lines is possible."""

from __future__ import annotations

from itertools import product

import pytest

from pipeline.core.lifecycle import TRANSITIONS, Actor, IllegalTransitionError, State, check_transition

LEGAL = {
    (None, "enqueued", "admit"),
    (None, "pending", "admit"),
    ("pending", "enqueued", "reconciler"),
    ("enqueued", "leased", "worker"),
    ("leased", "succeeded", "worker"),
    ("leased", "pending", "worker"),
    ("leased", "dead", "worker"),
    ("enqueued", "pending", "worker"),
    ("enqueued", "dead", "worker"),
    ("leased", "enqueued", "reconciler"),
    ("enqueued", "enqueued", "reconciler"),
    ("pending", "dead", "operator"),
    ("enqueued", "dead", "operator"),
    ("pending", "enqueued", "operator"),
    ("enqueued", "enqueued", "operator"),
    ("dead", "pending", "operator"),
    ("enqueued", "pending", "operator"),
    ("dead", "enqueued", "operator"),
    ("succeeded", "enqueued", "operator"),
    (None, "pending", "operator"),
    (None, "succeeded", "operator"),
    (None, "dead", "operator"),
    ("pending", "succeeded", "operator"),
    ("enqueued", "succeeded", "operator"),
    ("leased", "succeeded", "operator"),
    ("dead", "succeeded", "operator"),
    ("leased", "dead", "operator"),
}
ALL = sorted(product([None, *State], State, Actor), key=str)


@pytest.mark.parametrize(("source", "target", "actor"), ALL)
def test_every_move_is_in_the_table_or_refused(source, target, actor):
    if (source, target, actor) in LEGAL:
        assert check_transition(source, target, actor).target is target
    else:
        with pytest.raises(IllegalTransitionError, match=f"{actor} may not"):
            check_transition(source, target, actor)


def test_terminal_states_are_left_only_by_an_operator():
    assert {t.actor for t in TRANSITIONS if t.source is not None and t.source.is_terminal} == {Actor.OPERATOR}


def test_every_state_that_is_not_terminal_can_reach_a_terminal_one():
    reaches = {State.SUCCEEDED, State.DEAD}
    for _ in State:
        reaches |= {t.source for t in TRANSITIONS if t.source is not None and t.target in reaches}
    assert reaches == set(State)
