"""``outrider run reconciler``."""

from __future__ import annotations

import asyncio

from pipeline.cli.configured_sources import configured_sources
from pipeline.cli.listening import listening, on_signal
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.loop import Reconciler
from pipeline.reconcile.source_loop import SourceReconciler
from pipeline.settings import Settings

CONNECTION_WAIT_SECONDS = 3.0


def run_reconciler(settings: Settings) -> int:
    """Pass until SIGTERM or SIGINT, which end it after the page at hand."""
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    sources = configured_sources(settings)
    async with open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "reconciler") as pool:
        # A pass uses one connection, so to wait for one is to wait for the database, and SIGTERM waits too.
        pool.timeout = CONNECTION_WAIT_SECONDS
        reconciler = Reconciler(pool, settings)
        parts: list[Reconciler | SourceReconciler] = [reconciler]
        if sources:
            parts.append(SourceReconciler(pool, settings, sources))

        def stop() -> None:
            for part in parts:
                part.stop()

        on_signal(stop)
        async with listening("HEALTH", serve_health(settings.health_host, settings.health_port, reconciler.ready)):
            running = [asyncio.create_task(part.run()) for part in parts]
            # One that fails ends the others after the page at hand.
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            stop()
            await asyncio.wait(running)
            for task in running:
                task.result()
    return 0
