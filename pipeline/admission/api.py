"""The API's listener: who may do what, how much of it at once, and one form for every error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
import psycopg
import structlog
from aiohttp import web
from prometheus_client import Counter

from pipeline.admission import asking
from pipeline.admission.destination_endpoints import DestinationEndpoints, Receivers
from pipeline.admission.event_endpoints import EventEndpoints
from pipeline.admission.gathering import Gathering
from pipeline.admission.http_protocol import Connection, connection_factory
from pipeline.admission.intake import Door
from pipeline.admission.key_ring import Caller, KeyRing
from pipeline.admission.metrics import REQUEST_SECONDS, REQUESTS
from pipeline.admission.openapi import document
from pipeline.admission.operations import OPERATIONS, Operation
from pipeline.admission.probe import DatabaseProbe
from pipeline.admission.problems import Kind, Refusal, unavailable
from pipeline.admission.reading_endpoints import ReadingEndpoints
from pipeline.admission.router import Handler, Route, Router
from pipeline.admission.wakeup_endpoints import WakeupEndpoints
from pipeline.health import health_routes
from pipeline.ledger.pool import Pool

SHUTDOWN_SECONDS = 15.0

_log = structlog.get_logger(__name__)
Operate = Callable[[web.BaseRequest, Caller], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Over all keys, in one process."""

    body_bytes_max: int = 256 * 1024
    batch_bytes_max: int = 4 * 1024 * 1024
    batch_items_max: int = 1_000
    in_flight_max: int = 1_024
    buffered_bytes_max: int = 64 * 1024 * 1024


@asynccontextmanager
async def serve_api(
    host: str,
    port: int,
    pool: Pool,
    probe: DatabaseProbe,
    *,
    conninfo: str,
    receivers: Receivers,
    limits: ApiLimits | None = None,
) -> AsyncIterator[int]:
    """Listen while the block runs; gives the port, which is a free one for port 0. Raises OSError.

    ``conninfo`` is for acts on destinations, which take connections of their own.
    """
    limits = limits or ApiLimits()
    ring = KeyRing(pool)
    # Half of the connections commit; the others are for batches, reading, keys and the probe.
    committers = max(1, pool.max_size // 2)
    gathering = Gathering(pool, committers=committers)
    door = Door(in_flight_max=limits.in_flight_max, buffered_bytes_max=limits.buffered_bytes_max)
    destinations = DestinationEndpoints(pool, conninfo, door, receivers, body_bytes_max=limits.body_bytes_max)
    handlers = _handlers(
        pool, gathering, door, destinations, limits, batches_max=max(1, pool.max_size - committers - 1)
    )
    routes = [Route("GET", "/openapi.json", _openapi_handler())]
    routes += [Route(route.method, route.path, cast(Handler, route.handler)) for route in health_routes(probe.ready)]
    routes += [
        Route(
            operation.method, operation.path, _guarded(operation, handlers[operation.operation_id], ring, door, probe)
        )
        for operation in OPERATIONS
    ]
    server = web.Server(Router(routes).handle)
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        listener = await asyncio.get_running_loop().create_server(connection_factory(server), host, port)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(work) for work in (probe.run(), ring.run(), gathering.run())]
                try:
                    bound_port: int = listener.sockets[0].getsockname()[1]
                    _log.info("listening", url=f"http://{host}:{bound_port}")
                    yield bound_port
                finally:
                    # Who is in gets an answer: no new connections, then the requests in flight, then the commits.
                    listener.close()
                    await runner.cleanup()
                    for task in running:
                        task.cancel()
        finally:
            listener.close()
    finally:
        await runner.cleanup()


def _handlers(
    pool: Pool,
    gathering: Gathering,
    door: Door,
    destinations: DestinationEndpoints,
    limits: ApiLimits,
    *,
    batches_max: int,
) -> dict[str, Operate]:
    events = EventEndpoints(
        pool,
        gathering,
        door,
        body_bytes_max=limits.body_bytes_max,
        batch_bytes_max=limits.batch_bytes_max,
        batch_items_max=limits.batch_items_max,
        batches_max=batches_max,
    )
    reading = ReadingEndpoints(pool)
    return {
        "admitEvent": events.admit_event,
        "admitBatch": events.admit_batch,
        "listEvents": reading.list_events,
        "getEvent": reading.get_event,
        "listDeliveries": reading.list_deliveries,
        "getDelivery": reading.get_delivery,
        "getStatus": reading.get_status,
        "addDestination": destinations.add,
        "listDestinations": reading.list_destinations,
        "getDestination": reading.get_destination,
        "changeDestination": destinations.change,
        "enableDestination": destinations.enable,
        "disableDestination": destinations.disable,
        "verifyDestination": destinations.verify,
        "rotateSecret": destinations.rotate_secret,
        "wakeSource": WakeupEndpoints(pool).wake_source,
    }


def _guarded(operation: Operation, handler: Operate, ring: KeyRing, door: Door, probe: DatabaseProbe) -> Handler:
    """The handler behind key, scope and limits, with every failure as a problem."""
    seconds = REQUEST_SECONDS.labels(operation.operation_id)
    counts: dict[int, Counter] = {}

    async def admitted(request: web.BaseRequest) -> web.Response:
        caller = ring.authenticate(request.headers.get("Authorization"))
        if operation.scope not in caller.scopes:
            raise Refusal(
                Kind.FORBIDDEN,
                f"the key {caller.key_id} lacks the scope {operation.scope}",
                field="Authorization",
                mend="use a key with that scope",
            )
        with caller.meter.request():
            asking.check_query(request, operation)
            is_ready, trouble = probe.ready()
            if not is_ready:
                _log.debug("turned away", trouble=trouble)
                raise unavailable("the database is away")
            return await handler(request, caller)

    async def guarded(request: web.BaseRequest) -> web.Response:
        started = time.perf_counter()
        if isinstance(request.protocol, Connection):
            request.protocol.request_begins()
        try:
            with door.request():
                response = await admitted(request)
        except Refusal as refusal:
            response = refusal.response()
        except (TimeoutError, psycopg.OperationalError) as error:
            _log.warning(
                "the ledger failed", operation=operation.operation_id, error=" ".join(str(error).split()) or "time-out"
            )
            response = unavailable("the database does not answer").response()
        except Exception:
            _log.exception("a request failed", operation=operation.operation_id)
            response = Refusal(Kind.DEFECT, "the request could not be handled", mend="tell the operator").response()
        if not request.content.is_eof():
            # What is left of the body is not read, so the connection cannot be used again.
            response.force_close()
        seconds.observe(time.perf_counter() - started)
        count = counts.get(response.status)
        if count is None:
            count = counts[response.status] = REQUESTS.labels(operation.operation_id, str(response.status))
        count.inc()
        return response

    return guarded


def _openapi_handler() -> Handler:
    text = msgspec.json.encode(document())

    async def openapi(request: web.BaseRequest) -> web.Response:
        return web.Response(body=text, headers={"Content-Type": "application/json"})

    return openapi
