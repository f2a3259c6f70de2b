"""How long the oldest due row of each source has waited, also while no pass comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
import structlog

from pipeline.ledger.pool import Pool
from pipeline.ledger.sources import Mode, current_modes
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_metrics import OLDEST_DUE_SECONDS
from pipeline.reconcile.source_queries import oldest_due_seconds
from pipeline.reconcile.source_rows import SourceError

MEASURE_SECONDS = 15.0

_log = structlog.get_logger(__name__)


async def measure_oldest_due(pool: Pool, sources: Sequence[Source]) -> None:
    """Measure one source after the other, again and again, until cancelled. What goes wrong is the passes' to tell."""
    while True:
        await asyncio.sleep(MEASURE_SECONDS)
        for source in sources:
            try:
                await _measure(pool, source)
            except (psycopg.Error, SourceError) as error:
                _log.debug("oldest due row not known", source=source.source_id, error=" ".join(str(error).split()))


async def _measure(pool: Pool, source: Source) -> None:
    async with pool.connection() as connection:
        async with connection.transaction():
            modes = await current_modes(connection, source.source_id, shard_count=source.shard_count)
        for mode, shards in ((Mode.LIVE, modes.live), (Mode.SHADOW, modes.shadow)):
            age_seconds = await oldest_due_seconds(connection, source, shards=shards)
            OLDEST_DUE_SECONDS.labels(source.source_id, mode.value).set(age_seconds)
