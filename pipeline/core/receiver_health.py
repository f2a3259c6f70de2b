"""What one result says of the receiver as a whole: for its breaker, and for its rate.

=================== ======= =====
outcome             sign    slows
=================== ======= =====
success, redirect   works   no
unauthorized, gone  works   no
rejected            works   no
retryable           works   no
throttled (429)     -       yes
throttled (other)   fails   yes
server_error        fails   no
invalid_answer      fails   no
connection_lost     fails   no
timeout_after_sent  fails   yes
timeout_before_sent fails   yes
dns_failed          fails   no
connect_failed      fails   no
tls_failed          fails   no
target_refused      fails   no
not_sent            -       no
=================== ======= =====

A receiver that refuses an event works, so its breaker stays closed. 429 says that it works and has enough: a breaker
would add nothing to the lower rate. ``not_sent`` speaks of this worker alone.

The ledger draws the consequences where it settles, for all workers: ``settle`` in pipeline/ledger/sql/deliveries.sql.
"""

from __future__ import annotations

from typing import Literal

from pipeline.core.classify import Outcome

Sign = Literal["works", "fails"]

TOO_MANY_REQUESTS = 429

_WORKS = frozenset(
    {
        Outcome.SUCCESS,
        Outcome.REDIRECT,
        Outcome.UNAUTHORIZED,
        Outcome.GONE,
        Outcome.REJECTED,
        Outcome.RETRYABLE,
    }
)
_SAYS_NOTHING = frozenset({Outcome.NOT_SENT})
_SLOWS = frozenset({Outcome.THROTTLED, Outcome.TIMEOUT_AFTER_SENT, Outcome.TIMEOUT_BEFORE_SENT})


def sign_of(outcome: Outcome, status: int | None) -> Sign | None:
    """Whether the receiver works or fails, as far as this result tells."""
    if outcome in _SAYS_NOTHING or (outcome is Outcome.THROTTLED and status == TOO_MANY_REQUESTS):
        return None
    return "works" if outcome in _WORKS else "fails"


def slows(outcome: Outcome) -> bool:
    """Whether the destination's rate is to be taken back."""
    return outcome in _SLOWS
