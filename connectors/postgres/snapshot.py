"""Rows that were committed before the slot existed, read through the snapshot that it exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from connectors.errors import ConfigurationError, TransientError, one_line
from connectors.postgres.patience import next_result
from connectors.postgres.pgoutput import Column, Relation, Row
from connectors.postgres.replication import connect

LOCK_TIMEOUT_SECONDS: Final = 10
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Since:
    """Rows that were written at ``at_us`` or later, microseconds since 2000, by their column ``time``."""

    time: str
    at_us: int

    def __str__(self) -> str:
        return (_EPOCH + timedelta(microseconds=self.at_us)).isoformat(timespec="microseconds")

    def where(self) -> sql.Composed:
        return sql.SQL(" where {time} >= {moment}::timestamptz").format(
            time=sql.Identifier(self.time), moment=sql.Literal(str(self))
        )


@contextmanager
def import_snapshot(conninfo: str, snapshot_name: str) -> Iterator[psycopg.Connection]:
    """A connection inside a transaction that sees exactly what the slot's snapshot sees."""
    # It only reads: a cut in the middle of a table is no reason to try a rollback first.
    with closing(connect(conninfo, replication=False)) as connection:
        begin_reading(connection, snapshot_name)
        yield connection


def begin_reading(connection: psycopg.Connection, snapshot_name: str | None) -> None:
    """Begin a transaction that sees the tables as of one moment: an exported snapshot's, or now."""
    connection.execute("begin isolation level repeatable read read only")
    if snapshot_name is not None:
        connection.execute("set transaction snapshot %s", [snapshot_name])
    connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
    # Rows come in order from an index where there is one, the first at once, and not after a sort of a whole table.
    connection.execute("set local enable_sort = off")


def read_table(
    connection: psycopg.Connection,
    namespace: str,
    table: str,
    columns: Sequence[str],
    order: Sequence[str],
    *,
    binary: bool,
    since: Since | None = None,
) -> Iterator[tuple[Relation, Row]]:
    """Each row with the shape that describes it, as the stream would send it; with ``since`` not the older ones.

    One row at a time is held, however many there are: libpq's single-row mode, with the server held
    back by the socket. Raises ConfigurationError where the table or a column is missing or may not be read.
    """
    query = sql.SQL("select {columns} from {table}").format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.Identifier(namespace, table),
    )
    if since is not None:
        query += since.where()
    if order:
        query += sql.SQL(" order by ") + sql.SQL(", ").join(map(sql.Identifier, order))
    pgconn = connection.pgconn
    pgconn.send_query_params(query.as_bytes(connection), None, result_format=1 if binary else 0)
    pgconn.set_single_row_mode()
    relation: Relation | None = None
    while (result := next_result(pgconn)) is not None:
        if result.status == ExecStatus.FATAL_ERROR:
            raise _error(f"{namespace}.{table}", result)
        if result.status != ExecStatus.SINGLE_TUPLE:
            continue
        relation = relation or _relation(namespace, table, result)
        values = [result.get_value(0, index) for index in range(len(columns))]
        yield relation, list(values) if binary else [_as_text(value) for value in values]


def read_row(
    connection: psycopg.Connection,
    namespace: str,
    table: str,
    columns: Sequence[str],
    identity: Mapping[str, str],
    *,
    binary: bool,
) -> tuple[Relation, Row] | None:
    """The row whose columns have these values, given as text; None where there is none.

    Raises what read_table does, and ConfigurationError where several rows have them.
    """
    conditions = (
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.SQL(f"${number}"))  # digits
        for number, name in enumerate(identity, 1)
    )
    query = sql.SQL("select {columns} from {table} where {conditions} limit 2").format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.Identifier(namespace, table),
        conditions=sql.SQL(" and ").join(conditions),
    )
    parameters = [text.encode() for text in identity.values()]
    pgconn = connection.pgconn
    pgconn.send_query_params(query.as_bytes(connection), parameters, result_format=1 if binary else 0)
    result = next_result(pgconn)
    if result is None:
        raise TransientError(f"table {namespace}.{table} could not be read: no answer")
    while next_result(pgconn) is not None:
        pass
    if result.status != ExecStatus.TUPLES_OK:
        raise _error(f"{namespace}.{table}", result)
    if result.ntuples == 0:
        return None
    if result.ntuples > 1:
        raise ConfigurationError(f"table {namespace}.{table} has several rows with the same {', '.join(identity)}")
    values = [result.get_value(0, index) for index in range(len(columns))]
    return _relation(namespace, table, result), list(values) if binary else [_as_text(value) for value in values]


def now_us(connection: psycopg.Connection) -> int:
    """The database's clock, in microseconds since 2000."""
    row = connection.execute(
        "select floor(extract(epoch from clock_timestamp() - timestamptz '2000-01-01 UTC') * 1000000)::bigint"
    ).fetchone()
    return 0 if row is None else int(row[0])


def oldest_row_us(
    connection: psycopg.Connection, namespace: str, table: str, time: str, since: Since | None
) -> int | None:
    """When the oldest row was written, in microseconds since 2000, or None where there is none."""
    query = sql.SQL(
        "select floor(extract(epoch from min({time}) - timestamptz '2000-01-01 UTC') * 1000000)::bigint from {table}"
    ).format(time=sql.Identifier(time), table=sql.Identifier(namespace, table))
    if since is not None:
        query += since.where()
    row = connection.execute(query).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def _as_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _relation(namespace: str, table: str, result: PGresult) -> Relation:
    columns = tuple(
        Column((result.fname(index) or b"").decode(), result.ftype(index), result.fmod(index), False)
        for index in range(result.nfields)
    )
    return Relation(0, namespace, table, "d", columns)


def _error(table: str, result: PGresult) -> Exception:
    sqlstate = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    message = one_line((result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace"))
    if sqlstate.startswith("42"):
        return ConfigurationError(f"table {table} cannot be read: {message}")
    return TransientError(f"table {table} could not be read: {message}")
