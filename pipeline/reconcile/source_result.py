"""What begins a pass over a source, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any
from uuid import UUID

import psycopg


@dataclass(frozen=True, slots=True, kw_only=True)
class Waking:
    """What made the pass begin, as its run says it."""

    woken_by: str
    operator: str | None = None
    reason: str | None = None
    run_id: UUID | None = None
    """The run that the wake-up has already."""
    counts: dict[str, Any] | None = None
    """What a killed pass of this run did."""
    retries_refused: bool = False
    """Try rows again that were refused lately: somebody may have mended the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Rows of committed pages, by what became of them."""

    pages: int = 0
    examined: int = 0
    admitted: int = 0
    """Events with a delivery that was not there before."""
    existing: int = 0
    """Events that were admitted before: no-ops."""
    unsubscribed: int = 0
    """Events that are on record and go to nobody."""
    refused: int = 0
    """Rows that stay due; not among those examined."""

    @classmethod
    def of(cls, counts: dict[str, Any] | None) -> Tally:
        return cls(**{field.name: int((counts or {}).get(field.name, 0)) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePassResult:
    run_id: UUID
    tally: Tally
    is_complete: bool
    """False: it ended at its budget, was stopped, or failed; there may be more to do now."""
    error: str | None
    oldest_due_before_seconds: float | None
    oldest_due_after_seconds: float | None
    duration_seconds: float
    shards: Sequence[int]
    """Those that are live."""
    shadow_shards: Sequence[int]
    enabled: bool
    refusals: Mapping[str, str]
    """Why rows were refused, by event id."""

    @property
    def counts(self) -> dict[str, Any]:
        return {
            **asdict(self.tally),
            "is_complete": self.is_complete,
            "duration_seconds": round(self.duration_seconds, 6),
            "oldest_due_before_seconds": self.oldest_due_before_seconds,
            "oldest_due_after_seconds": self.oldest_due_after_seconds,
        }


def describe(error: psycopg.Error) -> str:
    """One line: what the server says, and its hint. Bounded, because the server repeats values that it cannot read."""
    said = [
        error.diag.message_primary or " ".join(str(error).split()),
        error.diag.message_detail,
        error.diag.message_hint,
    ]
    line = " ".join(f"{type(error).__name__}: {'; '.join(part for part in said if part)}".split())
    return line if len(line) <= DESCRIBED_MAX else line[: DESCRIBED_MAX - 1] + "…"


DESCRIBED_MAX = 500

# Classes of PostgreSQL's appendix A. Connection exception, insufficient resources, operator intervention.
_INTERRUPTIONS = ("08", "53", "57")
_STATEMENT_TIMEOUT = "57014"
# Cardinality violation, data exception, integrity constraint violation, triggered data change violation, SQL and external
# routine exceptions, check option violation, program limit exceeded, PL/pgSQL (which has what functions raise).
_OF_ROWS = ("21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0")
# With another first character a class is no standard's: whoever wrote a function chose it.
_STANDARD = "01234ABCDEFGH"
_POSTGRESQL = ("53", "54", "55", "57", "58", "72", "P0", "XX")


def is_interruption(error: psycopg.Error) -> bool:
    """Whether the server or the way to it failed, and not the source."""
    state = error.sqlstate
    if state is None:  # the client's own: a value that it cannot read came from the source
        return not isinstance(error, psycopg.DataError)
    return state.startswith(_INTERRUPTIONS) and state != _STATEMENT_TIMEOUT


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether one row's values may be the reason, so that the statement may do well without that row."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.DataError)
    return state.startswith(_OF_ROWS) or (state[0] not in _STANDARD and not state.startswith(_POSTGRESQL))
