"""The life of a delivery: every transition there is, who makes it, and on what condition.

::

    admit ──▶ pending ◀──────────────┐
      │         │ due                │ parked: costs no attempt
      ▼         ▼                    │
      └────▶ enqueued ───────────────┤
               ▲  │ claimed          │ to be tried again
       expired │  ▼                  │
               leased ───────────────┘
                  │
                  ├──▶ succeeded
                  └──▶ dead

The ledger's statements carry these conditions in their ``where`` clauses: a row that has moved on is left alone,
and the caller learns that it was late. This table is what those statements, and the code that asks for them,
are held against. A transition that is not listed does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """States of a delivery, as the ledger spells them."""

    PENDING = "pending"
    ENQUEUED = "enqueued"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    DEAD = "dead"

    @property
    def is_terminal(self) -> bool:
        """Left only by a recorded act of an operator."""
        return self in (State.SUCCEEDED, State.DEAD)


class Actor(StrEnum):
    """Who moves a delivery."""

    ADMIT = "admit"
    RECONCILER = "reconciler"
    WORKER = "worker"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the table. ``source`` is None where the row begins."""

    source: State | None
    target: State
    actor: Actor
    needs: str


TRANSITIONS = (
    Transition(None, State.ENQUEUED, Actor.ADMIT, "due now; delivery and outbox row in one commit"),
    Transition(None, State.PENDING, Actor.ADMIT, "deliver_at in the future, destination disabled, or beyond its rate"),
    Transition(State.PENDING, State.ENQUEUED, Actor.RECONCILER, "due; dispatch_seq + 1 and outbox row in one commit"),
    Transition(State.ENQUEUED, State.LEASED, Actor.WORKER, "message's dispatch_seq is current; attempt + 1"),
    Transition(State.LEASED, State.SUCCEEDED, Actor.WORKER, "attempt is the one claimed"),
    Transition(State.LEASED, State.PENDING, Actor.WORKER, "attempt is the one claimed; next_attempt_at is set"),
    Transition(State.LEASED, State.DEAD, Actor.WORKER, "attempt is the one claimed; terminal, or policy used up"),
    Transition(State.ENQUEUED, State.PENDING, Actor.WORKER, "message's dispatch_seq is current; reason and time kept"),
    Transition(State.ENQUEUED, State.DEAD, Actor.WORKER, "none of its messages could be handled, REFUSALS_MAX times"),
    Transition(State.LEASED, State.ENQUEUED, Actor.RECONCILER, "lease expired; dispatch_seq + 1"),
    Transition(State.ENQUEUED, State.ENQUEUED, Actor.RECONCILER, "lost in the transport; dispatch_seq + 1"),
    Transition(State.PENDING, State.DEAD, Actor.OPERATOR, "cancelled, recorded in its run"),
    Transition(State.ENQUEUED, State.DEAD, Actor.OPERATOR, "cancelled, recorded in its run; its message is stale"),
    Transition(State.PENDING, State.ENQUEUED, Actor.OPERATOR, "brought forward, recorded in its run"),
    Transition(State.ENQUEUED, State.ENQUEUED, Actor.OPERATOR, "dispatched again, recorded in its run"),
    Transition(State.ENQUEUED, State.PENDING, Actor.OPERATOR, "brought forward with many; in its run"),
    Transition(State.DEAD, State.PENDING, Actor.OPERATOR, "replay of many, at the destination's rate; in its run"),
    Transition(State.DEAD, State.ENQUEUED, Actor.OPERATOR, "replay, recorded in its run"),
    Transition(State.SUCCEEDED, State.ENQUEUED, Actor.OPERATOR, "forced replay, recorded in its run"),
    *(
        Transition(None, state, Actor.OPERATOR, "lost by a restore, rebuilt as the topics know it; in its run")
        for state in (State.PENDING, State.SUCCEEDED, State.DEAD)
    ),
    *(
        Transition(
            state, State.SUCCEEDED, Actor.OPERATOR, "set back by a restore; the attempts topic knows it ended so"
        )
        for state in (State.PENDING, State.ENQUEUED, State.LEASED, State.DEAD)
    ),
    Transition(State.LEASED, State.DEAD, Actor.OPERATOR, "set back by a restore; the attempts topic knows it ended so"),
)

_BY_KEY = {(line.source, line.target, line.actor): line for line in TRANSITIONS}


class IllegalTransitionError(Exception):
    """A caller asked for a transition that the table does not have: a defect of this program."""


def check_transition(source: State | None, target: State, actor: Actor) -> Transition:
    """The table's line for this move. Raises IllegalTransitionError where there is none."""
    try:
        return _BY_KEY[source, target, actor]
    except KeyError:
        raise IllegalTransitionError(f"{actor} may not move a delivery from {source} to {target}") from None
