"""A source tried on the database: every statement once, undone, and held to its contract."""

from __future__ import annotations

import psycopg

from pipeline.ledger.pool import Connection, Pool
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_queries import claim_page, due_rows, lookup_rows
from pipeline.reconcile.source_result import describe, is_interruption
from pipeline.reconcile.source_rows import SourceError, shown


async def check_on_database(pool: Pool, source: Source) -> str | None:
    """What is wrong, in one line; None where nothing is. Raises psycopg.Error where the database cannot be asked.

    Rows that are due show more: without any, a lookup that finds nothing and a claim that ignores ``refused`` pass.
    """
    shards = range(source.shard_count)
    try:
        async with pool.connection() as connection:
            await due_rows(connection, source, shards=shards, limit=1)
            event_ids = await _check_claim(connection, source, shards)
            if source.lookup is not None:
                found = await lookup_rows(connection, source, shards=shards, event_ids=event_ids)
                if {row.event_id for row in found} != set(event_ids):
                    return f"lookup does not find {shown(event_ids[0])}, which the claim gives"
    except SourceError as wrong:
        return str(wrong)
    except psycopg.Error as wrong:
        if is_interruption(wrong):
            raise
        return describe(wrong)
    return None


async def _check_claim(connection: Connection, source: Source, shards: range) -> list[str]:
    """Ids that it gives, at most one. Raises SourceError."""
    async with connection.transaction(force_rollback=True):
        rows = await claim_page(connection, source, shards=shards, refused=[], limit=1)
    event_ids = [row.event.event_id for row in rows]
    for row in rows:
        if row.refusal is not None:
            raise SourceError(row.refusal)
    async with connection.transaction(force_rollback=True):
        others = await claim_page(connection, source, shards=shards, refused=event_ids, limit=1)
    if any(row.event.event_id in event_ids for row in others):
        raise SourceError(f"claim gives {shown(event_ids[0])} although %(refused)s names it")
    return event_ids
