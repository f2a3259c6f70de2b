"""The reconciliation report's tables in the database: what is compared lies there, so memory here does not grow with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString

import psycopg
from psycopg.rows import class_row

from pipeline.ledger.queries import query

READ_ROWS = 2_000
WORK_MEM = "64MB"


@dataclass(frozen=True, slots=True)
class Scope:
    """Deliveries admitted in a time, of one destination or of all, counted in buckets."""

    since: datetime
    until: datetime
    bucket: timedelta
    destination_id: str | None = None

    @property
    def parameters(self) -> dict[str, object]:
        return {
            "since": self.since,
            "until": self.until,
            "destination_id": self.destination_id,
            "bucket_seconds": self.bucket.total_seconds(),
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """When the ledger was looked at, and the place in its log before which all that was seen had committed."""

    lsn: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMessage:
    """What is compared of a message; ``defect`` says why it is none of ours."""

    topic: str
    partition: int
    log_offset: int
    logged_at: datetime
    delivery_id: str | None
    destination_id: str | None
    event_id: str | None
    dispatch_seq: int | None
    attempt_id: int | None
    attempt: int | None
    result: str | None
    body_sha256: bytes | None
    defect: str | None
    is_attempt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlace:
    """A partition: offsets ``read_from`` to before ``read_to`` were read; the audit's group has passed ``audited_to``."""

    topic: str
    partition: int
    is_attempt: bool
    read_from: int
    read_to: int
    audited_to: int
    kept_since: datetime | None
    """Older messages may be gone by retention. None: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """Deliveries of one bucket and destination, by where they were seen."""

    bucket: datetime
    destination_id: str
    admitted: int
    in_topic: int
    attempted: int
    succeeded: int
    dead: int
    waiting: int
    waiting_by_reason: dict[str, int]
    in_audit: int


@dataclass(frozen=True, slots=True)
class FindingRow:
    kind: str
    delivery_id: str | None
    destination_id: str | None
    dispatch_seq: int | None
    attempt: int | None
    place: str | None
    """topic/partition/offset"""
    detail: str | None


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that keeps everybody else from a table; ``is_waiting`` for its own turn, which comes before theirs."""

    pid: int
    user: str | None
    application: str | None
    table: str
    is_waiting: bool


class LedgerLockedError(Exception):
    """A table could not be read for longer than was to be waited."""

    def __init__(self, holders: Sequence[LockHolder]) -> None:
        super().__init__(holders)
        self.holders = holders
        """As of a moment later; empty where they are gone."""


@contextmanager
def report_session(conninfo: str, *, lock_seconds: float) -> Iterator[psycopg.Connection]:
    """A session for one report; its tables are gone with it.

    Statements run as long as they have work, which may be long over a million rows, but wait for nobody longer than
    ``lock_seconds``. Raises LedgerLockedError.
    """
    with psycopg.connect(conninfo, autocommit=True, application_name="outrider report") as connection:
        connection.execute(
            f"set statement_timeout = 0; set lock_timeout = {max(1, round(lock_seconds * 1000))}; "
            f"set timezone = 'UTC'; set work_mem = '{WORK_MEM}'"
        )
        try:
            yield connection
        except psycopg.errors.LockNotAvailable:
            holders = connection.cursor(row_factory=class_row(LockHolder)).execute(query("report", "lock_holders"))
            raise LedgerLockedError(holders.fetchall()) from None


def take_ledger(connection: psycopg.Connection, scope: Scope) -> Moment:
    """Put aside what the ledger says at this moment."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        for name in ("take_deliveries", "take_dispatches", "take_attempts"):
            connection.execute(query("report", name), scope.parameters)
        row = connection.execute(query("report", "moment")).fetchone()
    if row is None:
        raise RuntimeError("the log always has a place")
    connection.execute(query("report", "make_tables"))
    return Moment(*row)


def is_settled(connection: psycopg.Connection, slots: Sequence[str], lsn: str) -> tuple[bool | None, str | None]:
    """Whether every slot has confirmed the place, and what the last of them has. None: one of them is not there."""
    row = connection.execute(query("report", "settled"), {"slots": list(slots), "lsn": lsn}).fetchone()
    return (None, None) if row is None else (row[0], row[1])


@contextmanager
def copying_messages(connection: psycopg.Connection) -> Iterator[psycopg.Copy]:
    with connection.cursor() as cursor, cursor.copy(query("report", "copy_messages")) as copy:
        yield copy


def copy_message(copy: psycopg.Copy, m: TopicMessage) -> None:
    copy.write_row(
        (
            m.topic,
            m.partition,
            m.log_offset,
            m.logged_at,
            m.delivery_id,
            m.destination_id,
            m.event_id,
            m.dispatch_seq,
            m.attempt_id,
            m.attempt,
            m.result,
            m.body_sha256,
            m.defect,
            m.is_attempt,
        )
    )


def copy_receiver_ids(connection: psycopg.Connection, delivery_ids: Iterable[str]) -> int:
    """Returns how many there were."""
    rows = 0
    with connection.cursor() as cursor, cursor.copy(query("report", "copy_receiver")) as copy:
        for delivery_id in delivery_ids:
            copy.write_row((delivery_id,))
            rows += 1
    return rows


def put_places(connection: psycopg.Connection, places: Iterable[ReadPlace]) -> None:
    """Instead of those that were put before."""
    connection.execute(query("report", "clear_places"))
    for place in places:
        connection.execute(
            query("report", "put_place"),
            {
                "topic": place.topic,
                "partition": place.partition,
                "is_attempt": place.is_attempt,
                "read_from": place.read_from,
                "read_to": place.read_to,
                "audited_to": place.audited_to,
                "kept_since": place.kept_since,
            },
        )
    connection.execute(query("report", "analyze"))


def unmatched_rows(connection: psycopg.Connection) -> int:
    """How many rows that the ledger had put out at the moment have no message in the topics."""
    row = connection.execute(query("report", "unmatched")).fetchone()
    return 0 if row is None else int(row[0])


def message_count(connection: psycopg.Connection) -> int:
    """That were read of the topics."""
    row = connection.execute(query("report", "message_count")).fetchone()
    return 0 if row is None else int(row[0])


def find(connection: psycopg.Connection, names: Iterable[LiteralString], parameters: dict[str, object]) -> None:
    for name in names:
        connection.execute(query("report", name), parameters)


def count_rows(connection: psycopg.Connection) -> Iterator[CountRow]:
    """In order of bucket and destination, through a cursor."""
    with connection.transaction(), connection.cursor("report_counts", row_factory=class_row(CountRow)) as cursor:
        cursor.itersize = READ_ROWS
        cursor.execute(query("report", "counts"))
        yield from cursor


def finding_counts(connection: psycopg.Connection) -> dict[str, int]:
    return dict(connection.execute(query("report", "finding_counts")).fetchall())


def finding_rows(connection: psycopg.Connection) -> Iterator[FindingRow]:
    """By kind and id, through a cursor."""
    with connection.transaction(), connection.cursor("report_findings", row_factory=class_row(FindingRow)) as cursor:
        cursor.itersize = READ_ROWS
        cursor.execute(query("report", "findings"))
        yield from cursor


def first_findings(connection: psycopg.Connection, kind: str, limit: int) -> list[FindingRow]:
    cursor = connection.cursor(row_factory=class_row(FindingRow))
    return cursor.execute(query("report", "findings_of_kind"), {"kind": kind, "limit": limit}).fetchall()


def take_repairable(connection: psycopg.Connection) -> dict[str, int]:
    """Put aside what can be dispatched again; how many for which kind of finding."""
    connection.execute(query("report", "repairable"))
    return repairable_counts(connection)


def repairable_counts(connection: psycopg.Connection) -> dict[str, int]:
    """Of what was put aside."""
    return dict(connection.execute(query("report", "repair_counts")).fetchall())


def repairable_dispatches(connection: psycopg.Connection, kind: str, page_rows: int) -> Iterator[dict[str, int]]:
    """Deliveries, each with the dispatch under which it was found, page by page."""
    after_id = ""
    while True:
        rows = connection.execute(
            query("report", "repair_page"), {"kind": kind, "after_id": after_id, "page_rows": page_rows}
        ).fetchall()
        if not rows:
            return
        yield dict(rows)
        after_id = rows[-1][0]
