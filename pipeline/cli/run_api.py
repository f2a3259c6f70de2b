"""``outrider run api``."""

from __future__ import annotations

import asyncio

from pipeline.admission.api import DatabaseProbe, serve_api
from pipeline.cli.listening import listening, on_signal
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.settings import Settings


def run_api(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT."""
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    stopping = asyncio.Event()
    on_signal(stopping.set)
    async with open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "api") as pool:
        probe = DatabaseProbe(pool)
        async with (
            listening("HEALTH", serve_health(settings.health_host, settings.health_port, probe.ready)),
            listening("API", serve_api(settings.api_host, settings.api_port, pool, probe)),
        ):
            await stopping.wait()
    return 0
