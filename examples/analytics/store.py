"""The DuckDB file: attempts and how far they go, written in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Final

import duckdb

SCHEMA: Final = Path(__file__).with_name("schema.sql")

_INSERT: Final = """
insert or replace into attempt
select unnest($attempt_id::bigint[]), unnest($recorded_at::timestamp[]), unnest($delivery_id::varchar[]),
       unnest($attempt::integer[]), unnest($destination_id::varchar[]), unnest($event_type::varchar[]),
       unnest($result::varchar[]), unnest($started_at::timestamp[]), unnest($duration_seconds::double[])
"""


class StoreError(Exception):
    """The file cannot be used; one line that says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRow:
    """What the minutes need of an attempt. Times are UTC, without a zone."""

    attempt_id: int
    recorded_at: datetime
    delivery_id: str
    attempt: int
    destination_id: str
    event_type: str
    result: str
    started_at: datetime
    duration_seconds: float


@dataclass(frozen=True, slots=True)
class Defect:
    """A message that is no attempt."""

    partition: int
    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class Minute:
    """One destination's attempts of one event type that began in one minute."""

    minute: datetime
    destination_id: str
    event_type: str
    attempts: int
    succeeded: int
    success_rate: float
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None


_COLUMNS: Final = tuple(field.name for field in fields(AttemptRow))


class Store:
    """One writer: DuckDB lets no second process open the file meanwhile. Raises StoreError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = duckdb.connect(str(path))
            self._db.execute(SCHEMA.read_text(encoding="utf-8"))
        except duckdb.Error as error:
            raise StoreError(f"{path} cannot be opened: {str(error).splitlines()[0]}") from None

    def close(self) -> None:
        self._db.close()

    def position(self, topic: str, partition: int) -> int | None:
        """The first offset that is not in the file yet."""
        row = self._db.execute(
            "select next_offset from position where topic = ? and partition = ?", [topic, partition]
        ).fetchone()
        return None if row is None else int(row[0])

    def write(
        self, topic: str, attempts: Sequence[AttemptRow], defects: Sequence[Defect], positions: Mapping[int, int]
    ) -> None:
        """All of it or nothing. What was written before is written again as it is.

        ``positions``: by partition, the offset behind the last one.
        """
        # The last one counts, as it would if they came apart.
        once = {(row.attempt_id, row.recorded_at): row for row in attempts}
        self._db.begin()
        try:
            if once:
                self._db.execute(
                    _INSERT, {column: [getattr(row, column) for row in once.values()] for column in _COLUMNS}
                )
            for defect in defects:
                self._db.execute(
                    "insert or replace into defect values (?, ?, ?, ?)",
                    [topic, defect.partition, defect.offset, defect.problem],
                )
            for partition, offset in positions.items():
                self._db.execute("insert or replace into position values (?, ?, ?)", [topic, partition, offset])
            self._db.commit()
        except BaseException:
            self._db.rollback()
            raise

    def forget_before(self, moment: datetime) -> None:
        """Remove what was recorded earlier than this time in UTC, so that the file stays small."""
        self._db.execute("delete from attempt where recorded_at < ?", [moment])

    def minutes(self, last: int) -> list[Minute]:
        """The last so many minutes in which something was tried, oldest first."""
        rows = self._db.execute(
            "select * from minute where minute in (select distinct minute from minute order by minute desc limit ?) "
            "order by minute, destination_id, event_type",
            [last],
        ).fetchall()
        return [Minute(*row) for row in rows]

    def defects(self) -> int:
        (count,) = self._db.execute("select count(*) from defect").fetchone() or (0,)
        return int(count)
