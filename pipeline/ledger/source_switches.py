"""Sources for operators: how they stand, and the switches, each turn of which is a run on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from pipeline.ledger.operator import Act
from pipeline.ledger.queries import query
from pipeline.ledger.runs import close_run, open_run
from pipeline.ledger.sources import Mode

SET = "source.set"


class NoSuchSourceError(LookupError):
    """No reconciler has read a source of that id."""


class SwitchError(ValueError):
    """The switch does not fit the source; the message says why, and nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEntry:
    source_id: str
    description: str
    enabled: bool
    shard_count: int
    can_shadow: bool
    read_at: datetime
    """When a reconciler read its file last."""
    modes: list[str]
    """By shard."""
    has_other_shards: bool
    """Modes were set for another number of shards, and count no longer."""
    is_woken: bool
    """A wake-up waits for a pass, or for the end of one."""
    refused: int
    passed_at: datetime | None

    @property
    def modes_text(self) -> str:
        """As ``live 0-2, off 3``."""
        shards: dict[str, list[int]] = {}
        for shard, mode in enumerate(self.modes):
            shards.setdefault(mode, []).append(shard)
        if len(shards) == 1:
            return self.modes[0]
        return ", ".join(f"{mode} {_ranges(numbers)}" for mode, numbers in sorted(shards.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    event_id: str
    reason: str
    times: int
    first_at: datetime
    last_at: datetime
    retry_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEntry:
    run_id: UUID
    kind: str
    woken_by: str
    operator: str
    started_at: datetime
    finished_at: datetime | None
    counts: dict[str, Any]
    error: str | None


def list_sources(connection: psycopg.Connection, source_id: str | None = None) -> list[SourceEntry]:
    """All by id, or that one."""
    cursor = connection.cursor(row_factory=class_row(SourceEntry))
    return cursor.execute(query("sources", "list_sources"), {"source_id": source_id}).fetchall()


def find_source(connection: psycopg.Connection, source_id: str) -> SourceEntry:
    """Raises NoSuchSourceError."""
    found = list_sources(connection, source_id)
    if not found:
        raise NoSuchSourceError(source_id)
    return found[0]


def list_refusals(connection: psycopg.Connection, source_id: str, *, limit: int) -> list[Refusal]:
    """Those met last come first."""
    cursor = connection.cursor(row_factory=class_row(Refusal))
    return cursor.execute(query("sources", "refusals"), {"source_id": source_id, "limit": limit}).fetchall()


def list_passes(connection: psycopg.Connection, source_id: str, *, limit: int) -> list[PassEntry]:
    """Newest first."""
    cursor = connection.cursor(row_factory=class_row(PassEntry))
    return cursor.execute(query("sources", "passes"), {"source_id": source_id, "limit": limit}).fetchall()


def register_source(
    connection: psycopg.Connection, source_id: str, *, description: str, shard_count: int, can_shadow: bool
) -> None:
    """Make the source known before any reconciler has read its file."""
    parameters = {
        "source_id": source_id,
        "description": description,
        "shard_count": shard_count,
        "can_shadow": can_shadow,
    }
    connection.execute(query("sources", "register"), parameters)


def switch_source(
    connection: psycopg.Connection,
    source_id: str,
    act: Act,
    *,
    mode: Mode | None,
    shards: Sequence[int] | None,
    enabled: bool | None,
) -> SourceEntry:
    """Set the mode of shards (None: all of them), or the source's enabled flag; how it stands then.

    Waits for the pages that are being claimed: when it returns, no page that began under the old modes commits any more.
    What was admitted stays as it is. Raises NoSuchSourceError and SwitchError.
    """
    with connection.transaction():
        connection.execute(query("sources", "hold_switch"), {"source_id": source_id})
        before = find_source(connection, source_id)
        wanted = list(range(before.shard_count)) if shards is None else sorted(set(shards))
        if strays := [shard for shard in wanted if not 0 <= shard < before.shard_count]:
            raise SwitchError(f"{source_id} has shards 0 to {before.shard_count - 1}, and no {strays[0]}")
        if mode is Mode.SHADOW and not before.can_shadow:
            raise SwitchError(f"{source_id} has no lookup in its file, which shadow mode needs")
        parameters = {"source": source_id, "mode": mode, "shards": wanted, "enabled": enabled}
        run_id = open_run(connection, SET, act, parameters=parameters, before=_state(before), after=None)
        if mode is not None:
            connection.execute(
                query("sources", "set_modes"),
                {"source_id": source_id, "shards": wanted, "shard_count": before.shard_count, "mode": mode},
            )
        if enabled is not None:
            connection.execute(query("sources", "set_enabled"), {"source_id": source_id, "enabled": enabled})
        after = find_source(connection, source_id)
        close_run(connection, run_id, after=_state(after), counts={}, error=None)
        connection.execute(query("sources", "tell_woken"), {"source_id": source_id})
    return after


def _state(source: SourceEntry) -> dict[str, Any]:
    return {"enabled": source.enabled, "modes": source.modes}


def _ranges(numbers: Sequence[int]) -> str:
    """``0-2 5`` for 0, 1, 2 and 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return " ".join("-".join(map(str, part)) for part in parts)
