"""How a slot stands, and how much of a table is not published yet: cheap questions on a normal connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg import sql

from connectors.postgres.lsn import parse_lsn
from connectors.router import Route

ROWS_COUNTED_MAX: Final = 100_000
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SlotStanding:
    """A row of pg_replication_slots, beside the server's end of WAL. LSNs as integers, sizes in bytes."""

    active_pid: int | None
    plugin: str
    database: str
    wal_status: str | None
    safe_wal_size: int | None
    """WAL that may still be written before the slot is lost; None where nothing limits what it holds."""
    confirmed_lsn: int
    server_lsn: int

    @property
    def lag_bytes(self) -> int:
        """WAL that PostgreSQL keeps readable for the slot, since what was confirmed last."""
        return max(0, self.server_lsn - self.confirmed_lsn)


@dataclass(frozen=True, slots=True)
class Unpublished:
    """Rows of a table that were written after what is published; ``rows`` counts up to ROWS_COUNTED_MAX."""

    rows: int
    is_more: bool
    oldest_seconds: float
    """Age of the first of them by the database's clock; 0 where there is none."""


def server_lsn(connection: psycopg.Connection) -> int:
    """The end of the WAL that this server has written, or replayed as a standby."""
    row = connection.execute(
        "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end::text"
    ).fetchone()
    return 0 if row is None or row[0] is None else parse_lsn(row[0])


def slot_standing(connection: psycopg.Connection, slot: str) -> SlotStanding | None:
    """None where there is no such slot."""
    row = connection.execute(
        "select active_pid, plugin, database, wal_status, safe_wal_size, coalesce(confirmed_flush_lsn, '0/0')::text"
        " from pg_replication_slots where slot_name = %s",
        [slot],
    ).fetchone()
    if row is None:
        return None
    active_pid, plugin, database, wal_status, safe_wal_size, confirmed = row
    return SlotStanding(
        active_pid,
        str(plugin),
        str(database),
        wal_status,
        safe_wal_size,
        parse_lsn(confirmed),
        server_lsn(connection),
    )


def unpublished(connection: psycopg.Connection, route: Route, as_of_us: int) -> Unpublished | None:
    """Rows whose ``route.time`` is later than the time that a stored position stands for (microseconds since 2000).

    The first of them is found by halving the range of the route's first ordering column, an integer that grows with
    the time, so that some dozens of look-ups in its index do, however many rows there are. A row that was written
    before that time in a transaction that committed after it is not seen. None where the route names no such columns.
    """
    query = unpublished_query(route)
    if query is None:
        return None
    as_of = _EPOCH + timedelta(microseconds=as_of_us)
    row = connection.execute(query, {"as_of": as_of, "limit": ROWS_COUNTED_MAX + 1}).fetchone()
    if row is None or not row[0]:
        return Unpublished(0, False, 0.0)
    return Unpublished(min(row[0], ROWS_COUNTED_MAX), row[0] > ROWS_COUNTED_MAX, max(0.0, float(row[1])))


def unpublished_query(route: Route) -> sql.Composed | None:
    """Takes ``as_of`` and ``limit``; gives how many rows there are, at most ``limit``, and the age of the first."""
    if route.time is None or not route.snapshot_order:
        return None
    number, written = sql.Identifier(route.snapshot_order[0]), sql.Identifier(route.time)
    return sql.SQL(
        """
        with recursive ends as (
          select (select {number} from {table} order by {number} limit 1) as low,
                 (select {number} from {table} order by {number} desc limit 1) + 1 as high
        ), search (low, high) as (
          select low, high from ends where low is not null
          union all
          select case when later then low else middle + 1 end, case when later then middle else high end
          from (select low, high, low + (high - low) / 2 as middle,
                       (select t.{written} from {table} t where t.{number} >= low + (high - low) / 2
                        order by t.{number} limit 1) > %(as_of)s as later
                from search where low < high) step
        ), first as (
          select low from search where low = high
        )
        select (select count(*) from (select from {table} t where t.{number} >= low limit %(limit)s) rows),
               (select extract(epoch from clock_timestamp() - t.{written})::float8 from {table} t
                where t.{number} >= low order by t.{number} limit 1)
        from first
        """
    ).format(number=number, written=written, table=sql.Identifier(route.namespace, route.table))
