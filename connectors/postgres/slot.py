"""What the catalogue says about the slot, the publication and the server, checked before streaming."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import psycopg

from connectors.errors import ConfigurationError, MissingPublicationError
from connectors.postgres.lsn import parse_lsn


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots. ``confirmed_lsn`` is where streaming would begin."""

    plugin: str
    database: str
    confirmed_lsn: int
    wal_status: str | None


def read_slot(connection: psycopg.Connection, slot: str) -> SlotState | None:
    row = connection.execute(
        "select plugin, database, confirmed_flush_lsn::text, wal_status from pg_replication_slots where slot_name = %s",
        [slot],
    ).fetchone()
    if row is None:
        return None
    plugin, database, confirmed, wal_status = row
    confirmed_lsn = 0 if confirmed is None else parse_lsn(confirmed)
    return SlotState(str(plugin), str(database), confirmed_lsn, wal_status)


def check_server(
    connection: psycopg.Connection, publication: str, tables: Mapping[tuple[str, str], Collection[str]]
) -> None:
    """Raises ConfigurationError unless the server can stream these tables through this publication.

    ``tables`` maps (schema, table) to the columns that are needed of it.
    """
    level = connection.execute("select current_setting('wal_level')").fetchone()
    if level is not None and level[0] != "logical":
        raise ConfigurationError(f"PostgreSQL runs with wal_level = {level[0]}: set wal_level = logical and restart it")
    found = connection.execute("select pubinsert from pg_publication where pubname = %s", [publication]).fetchone()
    if found is None:
        raise MissingPublicationError(publication, "does not exist")
    if not found[0]:
        raise MissingPublicationError(publication, "does not publish inserts")
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
            )
        for column in needed:
            if column not in columns:
                raise ConfigurationError(
                    f"table {namespace}.{table} has no column {column!r} in publication {publication},"
                    " but the route needs it"
                )
