"""A source's own statements, run under its role: the claim, the direct query of what is due, and the lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString

from psycopg import DataError
from psycopg.abc import Buffer
from psycopg.rows import TupleRow
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads

from pipeline.ledger.pool import Connection
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_rows import DUE, ClaimedRow, Column, SourceError, check_columns, claimed_rows, read_json

_SESSION = "select set_config('enable_seqscan', %s, true), set_config('role', %s, true)"
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class _Times(TimestamptzLoader):
    """Times that Python has none for, as infinity, become its first and last one, so that they are no error of a whole page."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            text = bytes(data)
            return _FIRST if text.startswith(b"-") or text.endswith(b"BC") else _LAST


@dataclass(frozen=True, slots=True)
class DueRow:
    event_id: str
    due_at: datetime


async def claim_page(
    connection: Connection, source: Source, *, shards: Sequence[int], refused: Sequence[str], limit: int
) -> list[ClaimedRow]:
    """At most ``limit`` rows, in the caller's transaction. Raises SourceError, and psycopg.Error for what SQL says."""
    parameters = _parameters(source, shards, limit=limit, refused=list(refused))
    columns, rows = await _rows(connection, source, source.claim, parameters)
    _check_bound("claim", rows, limit)
    return claimed_rows(source, columns, rows)


async def due_rows(connection: Connection, source: Source, *, shards: Sequence[int], limit: int) -> list[DueRow]:
    """What is due, the oldest first, without a lock. Raises as ``claim_page`` does."""
    async with connection.transaction():
        await connection.execute("set transaction read only")
        parameters = _parameters(source, shards, limit=limit)
        columns, rows = await _rows(connection, source, source.due, parameters)
    _check_bound("due", rows, limit)
    return _due("due", columns, rows)


async def lookup_rows(
    connection: Connection, source: Source, *, shards: Sequence[int], event_ids: Sequence[str]
) -> list[DueRow]:
    """Those of the named events that belong to the shards, due or not. Raises as ``claim_page`` does."""
    if source.lookup is None:
        raise SourceError("the source has no lookup, which shadow mode needs")
    async with connection.transaction():
        await connection.execute("set transaction read only")
        parameters = _parameters(source, shards, event_ids=list(event_ids))
        columns, rows = await _rows(connection, source, source.lookup, parameters)
    _check_bound("lookup", rows, len(event_ids))
    return _due("lookup", columns, rows)


async def oldest_due_seconds(connection: Connection, source: Source, *, shards: Sequence[int]) -> float:
    """Age of the earliest due row by the database's clock, 0 where nothing is due. Raises as ``claim_page`` does."""
    if not shards:
        return 0.0
    oldest = await due_rows(connection, source, shards=shards, limit=1)
    if not oldest:
        return 0.0
    cursor = await connection.execute(
        "select extract(epoch from clock_timestamp() - %s)::double precision", (oldest[0].due_at,)
    )
    row = await cursor.fetchone()
    return max(0.0, float(row[0])) if row else 0.0


def _check_bound(statement: str, rows: Sequence[TupleRow], limit: int) -> None:
    if len(rows) > limit:
        raise SourceError(
            f"{statement} gave {len(rows)} rows where at most {limit} were asked for: end it with its limit"
        )


def _due(statement: str, columns: Sequence[Column], rows: Sequence[TupleRow]) -> list[DueRow]:
    check_columns(statement, columns, DUE, {})
    places = [[column.name for column in columns].index(name) for name in DUE]
    found = [DueRow(*(row[place] for place in places)) for row in rows]
    if any(row.event_id is None or row.due_at is None for row in found):
        raise SourceError(f"{statement} gives a row whose event_id or due_at is NULL")
    return found


async def _rows(
    connection: Connection, source: Source, statement: LiteralString, parameters: dict[str, Any]
) -> tuple[list[Column], list[TupleRow]]:
    """Columns and rows of the statement under the source's role; the role ends with the statement."""
    # Sessions of the ledger do without sequential scans, which suits its own statements, and none that others wrote.
    await connection.execute(_SESSION, ("on", source.role or "none"))
    # Planned each time: what suits an empty page suits no full one.
    cursor = connection.cursor()
    set_json_loads(read_json, cursor)
    cursor.adapters.register_loader("timestamptz", _Times)
    await cursor.execute(statement, parameters, prepare=False)
    if cursor.description is None:
        raise SourceError("a statement gives no rows: end an update with returning")
    columns = [Column(column.name, column.type_code) for column in cursor.description]
    rows = await cursor.fetchall()
    await connection.execute(_SESSION, ("off", "none"))
    return columns, rows


def _parameters(source: Source, shards: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"shards": list(shards), "shard_count": source.shard_count, **more}
