"""An act outside the database under a run: recorded before it begins, closed with what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from pipeline.ledger.operator import Act
from pipeline.ledger.runs import close_run, open_run


@dataclass(slots=True)
class Record:
    """What the block tells of its act: counts, and the state that it left (None: as intended)."""

    run_id: UUID
    counts: dict[str, Any] = field(default_factory=dict)
    after: Any = None


@contextmanager
def recorded(
    connection: psycopg.Connection, kind: str, by: Act, *, parameters: Mapping[str, Any], before: Any, after: Any
) -> Iterator[Record]:
    """A run that is open while the block runs, and failed where the block raises."""
    record = Record(open_run(connection, kind, by, parameters=parameters, before=before, after=after))
    try:
        yield record
    except BaseException as error:
        if not connection.closed and not connection.broken:
            said = f"{type(error).__name__}: {error}"
            close_run(connection, record.run_id, after=record.after, counts=record.counts, error=said)
        raise
    close_run(connection, record.run_id, after=record.after, counts=record.counts, error=None)
