"""``outrider run reconciler``."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

from pipeline.cli.errors import CommandError
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.loop import Reconciler
from pipeline.settings import Settings


def run_reconciler(settings: Settings) -> int:
    """Pass until SIGTERM or SIGINT, which end it after the page at hand."""
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    async with open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "reconciler") as pool:
        reconciler = Reconciler(pool, settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, reconciler.stop)
        async with AsyncExitStack() as listeners:
            try:
                await listeners.enter_async_context(
                    serve_health(settings.health_host, settings.health_port, reconciler.ready)
                )
            except OSError as error:
                raise CommandError(
                    f"OUTRIDER_HEALTH_HOST, OUTRIDER_HEALTH_PORT: cannot listen on "
                    f"{settings.health_host}:{settings.health_port}: {error.strerror or error}"
                ) from None
            await reconciler.run()
    return 0
