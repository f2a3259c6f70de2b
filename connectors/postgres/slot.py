"""What the catalogue says about the slot, the publication and the server, checked before streaming."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import psycopg

from connectors.errors import ConfigurationError, MissingPublicationError, TransientError
from connectors.postgres.lsn import parse_lsn
from connectors.postgres.replication import ServerIdentity

# Columns that a release of PostgreSQL may lack are looked up by name, and NULL then.
_SLOT: Final = """
select plugin, database, confirmed_flush_lsn::text, restart_lsn::text, wal_status, safe_wal_size, active_pid,
       coalesce(to_jsonb(slot) ->> 'invalidation_reason', to_jsonb(slot) ->> 'conflicting')
from pg_replication_slots slot
where slot_name = %s
"""

# Transaction ids tell a changed entry from an unchanged one, object ids one that was dropped and made again.
_PUBLICATION: Final = """
select publication.pubinsert,
       format('%%s.%%s', publication.oid, publication.xmin) || coalesce((
         select string_agg(format(',%%s.%%s', member.oid, member.xmin), '' order by member.oid)
         from pg_publication_rel member
         join pg_class on pg_class.oid = member.prrelid
         join pg_namespace on pg_namespace.oid = pg_class.relnamespace
         where member.prpubid = publication.oid
           and (nspname, relname) in (select * from unnest(%s::name[], %s::name[]))
       ), '')
from pg_publication publication
where pubname = %s
"""


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots. ``confirmed_lsn`` is where streaming would begin.

    ``safe_wal_size`` is how many bytes of WAL may be written before the slot is in danger of being lost; None
    where the server keeps WAL without a limit. A physical slot has neither plugin nor database.
    """

    plugin: str | None
    database: str | None
    confirmed_lsn: int
    wal_status: str | None
    restart_lsn: int | None = None
    safe_wal_size: int | None = None
    active_pid: int | None = None
    lost_because: str | None = None
    """PostgreSQL's word for it, where it has one."""

    @property
    def is_lost(self) -> bool:
        return self.wal_status == "lost"


def read_slot(connection: psycopg.Connection, slot: str) -> SlotState | None:
    row = connection.execute(_SLOT, [slot]).fetchone()
    if row is None:
        return None
    plugin, database, confirmed, restart, wal_status, safe_wal_size, active_pid, reason = row
    return SlotState(
        plugin=plugin,
        database=database,
        confirmed_lsn=0 if confirmed is None else parse_lsn(confirmed),
        wal_status=wal_status,
        restart_lsn=None if restart is None else parse_lsn(restart),
        safe_wal_size=safe_wal_size,
        active_pid=active_pid,
        lost_because=None if reason in (None, "true", "false") else str(reason),
    )


def identity_by_sql(connection: psycopg.Connection) -> ServerIdentity:
    """What IDENTIFY_SYSTEM says, for a role that may not replicate.

    Where earlier timelines were left only the replication protocol tells; here they count as left at the end of the
    WAL, so that a position from one of them is taken for part of the history.
    """
    row = connection.execute(
        "select system_identifier::text, current_database(), pg_current_wal_flush_lsn()::text,"
        " ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::integer from pg_control_system()"
    ).fetchone()
    if row is None:
        raise TransientError("PostgreSQL did not say who it is")
    system_id, database, wal_end, timeline = row
    wal_end_lsn = parse_lsn(wal_end)
    switches = dict.fromkeys(range(1, timeline), wal_end_lsn)
    return ServerIdentity(system_id, timeline, database, wal_end_lsn, switches)


def publication_fingerprint(
    connection: psycopg.Connection, publication: str, tables: Collection[tuple[str, str]]
) -> str:
    """A text that changes whenever the publication, or its entry of one of these tables, is changed or made anew.

    Rows that are written while a publication lacks their table are not in the stream, and no later change of the
    publication brings them back. Raises MissingPublicationError.
    """
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    row = connection.execute(_PUBLICATION, [schemas, names, publication]).fetchone()
    if row is None:
        raise MissingPublicationError(publication, "does not exist", tables)
    if not row[0]:
        raise MissingPublicationError(publication, "does not publish inserts", tables)
    return str(row[1])


def check_changes(
    connection: psycopg.Connection, publication: str, wanted: Collection[Literal["update", "delete"]]
) -> None:
    """Raises ConfigurationError unless the publication has the changes that routes are to do something about."""
    row = connection.execute(
        "select pubupdate, pubdelete from pg_publication where pubname = %s", [publication]
    ).fetchone()
    published = {"update": row is None or row[0], "delete": row is None or row[1]}
    for change in wanted:
        if not published[change]:
            raise ConfigurationError(
                f"a route publishes or refuses {change}s, but publication {publication} leaves them out:"
                f" alter publication {publication} set (publish = 'insert, update, delete')"
            )


def check_server(
    connection: psycopg.Connection, publication: str, tables: Mapping[tuple[str, str], Collection[str]]
) -> str:
    """The publication's fingerprint.

    ``tables`` maps (schema, table) to the columns that are needed of it. Raises ConfigurationError unless the
    server can stream these through this publication, TransientError while it is in recovery.
    """
    row = connection.execute("select current_setting('wal_level'), pg_is_in_recovery()").fetchone()
    if row is not None and row[0] != "logical":
        raise ConfigurationError(f"PostgreSQL runs with wal_level = {row[0]}: set wal_level = logical and restart it")
    if row is not None and row[1]:
        raise TransientError("PostgreSQL is in recovery: waiting until it is the primary")
    fingerprint = publication_fingerprint(connection, publication, tables)
    published = {
        (str(namespace), str(table)): set(columns)
        for namespace, table, columns in connection.execute(
            "select schemaname, tablename, attnames::text[] from pg_publication_tables where pubname = %s",
            [publication],
        )
    }
    for (namespace, table), needed in tables.items():
        columns = published.get((namespace, table))
        if columns is None:
            # A partitioned table is listed itself only where its rows are published under its name.
            raise MissingPublicationError(
                publication,
                f"lacks table {namespace}.{table}"
                " (of a partitioned table it must publish via the root: publish_via_partition_root = true)",
                tables,
            )
        for column in needed:
            if column not in columns:
                raise ConfigurationError(
                    f"table {namespace}.{table} has no column {column!r} in publication {publication},"
                    " but the route needs it"
                )
    return fingerprint
