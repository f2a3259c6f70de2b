"""Business rows and a source over them: assets that wait to be announced, in shards by publisher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.reconcile.source_file import Source, parse_source
from tests.support.ledger_rows import add_destination, connect

SOURCE_ID = "assets"
EVENT_TYPE = "asset.processed"

SCHEMA = """
create table public.asset (
  asset_id     bigint primary key,
  publisher    text not null,
  processed_at timestamptz not null default clock_timestamp(),
  announced_at timestamptz,
  payload      text
);
create index asset_due on public.asset (processed_at) where announced_at is null;
"""
CLAIM = """
update public.asset a
set announced_at = clock_timestamp()
where a.asset_id in (
    select d.asset_id from public.asset d
    where d.announced_at is null
      and d.processed_at <= clock_timestamp()
      and outrider.shard_of(d.publisher, %(shard_count)s) = any (%(shards)s)
      and 'asset-' || d.asset_id <> all (%(refused)s)
    order by d.processed_at, d.asset_id
    limit %(limit)s
    for update skip locked)
returning 'asset-' || a.asset_id as event_id, 'asset.processed' as event_type, array['acme'] as destinations,
          coalesce(a.payload, '{"asset":' || a.asset_id || '}') as payload, a.processed_at as due_at
"""
DUE = """
select 'asset-' || a.asset_id as event_id, a.processed_at as due_at
from public.asset a
where a.announced_at is null
  and a.processed_at <= clock_timestamp()
  and outrider.shard_of(a.publisher, %(shard_count)s) = any (%(shards)s)
order by a.processed_at, a.asset_id
limit %(limit)s;
"""
LOOKUP = """
select 'asset-' || a.asset_id as event_id, a.processed_at as due_at
from public.asset a
where 'asset-' || a.asset_id = any (%(event_ids)s)
  and outrider.shard_of(a.publisher, %(shard_count)s) = any (%(shards)s)
"""
CONTENT: dict[str, Any] = {
    "description": "assets that were processed",
    "event_types": [EVENT_TYPE],
    "claim": CLAIM,
    "due": DUE,
    "lookup": LOOKUP,
    "shards": 4,
    "page_rows": 50,
}


def source(**changes: Any) -> Source:
    return parse_source(SOURCE_ID, {**CONTENT, **changes})


def write_source(directory: Path, source_id: str = SOURCE_ID, **changes: Any) -> Path:
    """The source as a file."""
    lines = []
    for key, value in {**CONTENT, **changes}.items():
        if isinstance(value, str):
            lines.append(f"{key} = '''{value}'''")
        elif value is not None:
            lines.append(f"{key} = {value}")
    path = directory / f"{source_id}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_assets(connection: psycopg.Connection, *, reconciler: str) -> None:
    """The table, with what the login of the reconciler needs of it, and a receiver."""
    connection.execute(SCHEMA)
    connection.execute(f"grant select, update on public.asset to {reconciler}".encode())
    add_destination(connection, start_rate_per_second=10_000, burst=10_000)


@contextmanager
def business(
    database: str, role_dsns: Mapping[str, str], mode: Literal["live", "shadow"]
) -> Iterator[psycopg.Connection]:
    """A superuser's session on a database with the table and its source's shards in this mode."""
    with connect(database) as connection:
        login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
        make_assets(connection, reconciler=str(login))
        set_modes(connection, mode)
        yield connection


def add_assets(connection: psycopg.Connection, first: int, count: int, **columns: Any) -> None:
    """Due at once, of ten publishers in turn."""
    connection.execute(
        "insert into public.asset (asset_id, publisher, processed_at, payload) "
        "select n, coalesce(%s, 'publisher-' || n %% 10), coalesce(%s, clock_timestamp()), %s "
        "from generate_series(%s::bigint, %s::bigint) n",
        (columns.get("publisher"), columns.get("processed_at"), columns.get("payload"), first, first + count - 1),
    )


def make_topics(bootstrap_servers: str, topic_prefix: str) -> None:
    """The topic of wake-ups; the fixture of the prefix deletes it."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for creation in admin.create_topics([NewTopic(f"{topic_prefix}.wakeups", 1, 1)]).values():
        creation.result(30)


def set_modes(connection: psycopg.Connection, mode: str, *shards: int, shard_count: int = 4) -> None:
    """As an operator would, without the record."""
    connection.execute(
        "insert into outrider.source (source_id, description, shard_count, can_shadow) values (%s, 'd', %s, true) "
        "on conflict do nothing",
        (SOURCE_ID, shard_count),
    )
    connection.execute(
        "insert into outrider.source_shard (source_id, shard, shard_count, mode) "
        "select %s, n, %s, %s from unnest(%s::integer[]) n "
        "on conflict (source_id, shard) do update set mode = excluded.mode",
        (SOURCE_ID, shard_count, mode, list(shards or range(shard_count))),
    )
