"""What the ledger says about itself, for people, metrics and scripts. Nothing here changes a row."""

from __future__ import annotations

from psycopg.rows import scalar_row

from pipeline.ledger.pool import Pool
from pipeline.ledger.queries import query


async def oldest_due_seconds(pool: Pool) -> float:
    """Age of the oldest due delivery to an enabled destination, by the database's clock; 0 where none is due."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(query("reports", "oldest_due_seconds"))
        return float(await cursor.fetchone() or 0.0)
