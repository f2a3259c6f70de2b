"""The API's application: health, metrics, and where deliveries stand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import psycopg
import structlog
from aiohttp import web

from pipeline.admission.status import StatusReport
from pipeline.health import health_routes
from pipeline.ledger.pool import Pool

PROBE_SECONDS = 1.0
ANSWER_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class DatabaseProbe:
    """Asks the database every second, so that a question about readiness waits for nothing."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._trouble = "the database has not answered yet"

    def ready(self) -> tuple[bool, str]:
        return (False, self._trouble) if self._trouble else (True, "the database answers")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS), self._pool.connection() as connection:
                    await connection.execute("select from outrider.ledger_setting")
                trouble = ""
            except TimeoutError:
                trouble = f"the database does not answer within {ANSWER_SECONDS:g} s"
            except psycopg.Error as error:
                trouble = " ".join(str(error).split())
            if trouble != self._trouble:
                _log.info("readiness changed", trouble=trouble or None)
            self._trouble = trouble
            await asyncio.sleep(PROBE_SECONDS)


@asynccontextmanager
async def serve_api(host: str, port: int, pool: Pool, probe: DatabaseProbe) -> AsyncIterator[int]:
    """Listen while the block runs; gives the port, which is a free one for port 0. Raises OSError."""
    application = web.Application()
    application.add_routes(health_routes(probe.ready))
    application.add_routes([web.get("/v1/status", _status_handler(StatusReport(pool)))])
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    probing = asyncio.create_task(probe.run())
    try:
        await web.TCPSite(runner, host, port).start()
        bound_port: int = runner.addresses[0][1]
        _log.info("listening", url=f"http://{host}:{bound_port}")
        yield bound_port
    finally:
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing
        await runner.cleanup()


def _status_handler(report: StatusReport) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def status(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return web.json_response(await report.current())
        except (TimeoutError, psycopg.Error) as error:
            _log.warning("status failed", error=" ".join(str(error).split()) or "time-out")
            return web.json_response({"error": "the ledger does not answer"}, status=503)

    return status
