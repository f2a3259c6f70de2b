"""``outrider run reconciler``."""

from __future__ import annotations

import asyncio

from pipeline.cli.listening import listening, on_signal
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.loop import Reconciler
from pipeline.settings import Settings

CONNECTION_WAIT_SECONDS = 3.0


def run_reconciler(settings: Settings) -> int:
    """Pass until SIGTERM or SIGINT, which end it after the page at hand."""
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    async with open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "reconciler") as pool:
        # A pass uses one connection, so to wait for one is to wait for the database, and SIGTERM waits too.
        pool.timeout = CONNECTION_WAIT_SECONDS
        reconciler = Reconciler(pool, settings)
        on_signal(reconciler.stop)
        async with listening("HEALTH", serve_health(settings.health_host, settings.health_port, reconciler.ready)):
            await reconciler.run()
    return 0
