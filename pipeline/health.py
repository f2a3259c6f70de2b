"""The listener of each component: ``/livez``, ``/readyz`` and ``/metrics``.

Liveness says that the event loop turns, so lag never fails it. Readiness says whether the component does its work,
with the reason where it does not. Metrics are Prometheus' text format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Readiness = Callable[[], tuple[bool, str]]


def health_routes(ready: Readiness) -> list[web.RouteDef]:
    """Routes for an application; ``ready`` returns whether, and a short reason."""

    async def livez(request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readyz(request: web.Request) -> web.Response:
        is_ready, reason = ready()
        return web.Response(status=200 if is_ready else 503, text=reason + "\n")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)]


@asynccontextmanager
async def serve_health(host: str, port: int, ready: Readiness) -> AsyncIterator[None]:
    """Listen while the block runs; port 0 means no listener. Raises OSError where the port is taken."""
    if port == 0:
        yield
        return
    application = web.Application()
    application.add_routes(health_routes(ready))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
