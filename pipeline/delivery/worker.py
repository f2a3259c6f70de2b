"""The delivery worker as a whole: what it opens, how it runs, and how it ends.

It ends with 0 when it was asked to (SIGTERM or SIGINT) and drained: it reads no further, waits for requests in flight,
commits, and leaves the group. It ends with 1 when Faust has crashed or a delivery met a defect; whatever was in
flight then is found by its lease.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from typing import Any

import structlog

from pipeline.delivery.app import build_app
from pipeline.delivery.flow import DeliveryFlow
from pipeline.delivery.quarantine import Quarantine
from pipeline.delivery.sender import Sender
from pipeline.delivery.start_checks import START_SECONDS, wait_for_database, wait_for_topics
from pipeline.delivery.transport import Origin
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.settings import Settings

log = structlog.get_logger(__name__)

STOP_SECONDS = 30.0
COMMIT_SECONDS = 10.0
LOOK_SECONDS = 0.1


class Worker:
    """One worker process. ``run`` it once, in an event loop of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.worker_id = settings.worker_id or f"{socket.gethostname()}-{os.getpid()}"
        self._stopping = asyncio.Event()
        self._state = "starting"
        self._app: Any = None

    def stop(self) -> None:
        """Ask it to drain and end."""
        self._stopping.set()

    def ready(self) -> tuple[bool, str]:
        """Whether it has its partitions and reads them, with the state in a word."""
        if self._state == "running" and self._app.rebalancing:
            return False, "rebalancing"
        return self._state == "running", self._state

    async def run(self) -> int:
        """Exit status of the program. Raises NotReadyError where a service is away at the start."""
        settings = self._settings
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serve_health(settings.health_host, settings.health_port, self.ready))
            pool = await stack.enter_async_context(
                open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "worker")
            )
            if not await self._unless_stopped(wait_for_database(pool)):
                return 0
            if not await self._unless_stopped(wait_for_topics(settings)):
                return 0
            sender = await stack.enter_async_context(Sender(concurrency=settings.worker_concurrency))
            quarantine = await stack.enter_async_context(Quarantine(settings))
            self._app, topic = build_app(settings)
            flow = DeliveryFlow(
                settings,
                self.worker_id,
                messages=self._app.consumer,
                pool=pool,
                sender=sender,
                quarantine=quarantine,
            )
            _attach(self._app, topic, flow)
            return await self._work(flow)

    async def _work(self, flow: DeliveryFlow) -> int:
        app = self._app
        serving = asyncio.create_task(flow.serve())
        try:
            async with asyncio.timeout(START_SECONDS):
                await app.start()
            self._state = "running"
            log.info("worker runs", worker_id=self.worker_id, group=self._settings.name("delivery"))
            while not (self._stopping.is_set() or app.crashed or serving.done()):
                await asyncio.wait({serving}, timeout=LOOK_SECONDS)
            failure = _failure(app, serving)
            if failure is not None:
                self._state = "failed"
                log.error("worker failed", reason=failure)
            else:
                self._state = "draining"
                await self._drain(flow)
        finally:
            await self._stop_app()
            serving.cancel()
            await asyncio.wait({serving})
        return 0 if failure is None else 1

    async def _drain(self, flow: DeliveryFlow) -> None:
        consumer = self._app.consumer
        log.info("draining", in_flight=flow.in_flight)
        consumer.stop_flow()
        self._app.flow_control.suspend()
        if not await flow.drain(self._settings.worker_drain_seconds):
            log.warning("requests left to their leases", in_flight=flow.in_flight)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await consumer.commit()
        except TimeoutError:
            log.warning("offsets not committed; the next owner reads again what was done")

    async def _stop_app(self) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._app.stop()
        except TimeoutError:
            log.warning("the group was not left in time; it notices by itself", seconds=STOP_SECONDS)

    async def _unless_stopped(self, work: Any) -> bool:
        """Do it, unless the program is asked to end before it is done."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            await task
            return True
        task.cancel()
        return False


def _attach(app: Any, topic: Any, flow: DeliveryFlow) -> None:
    """The agent admits and does nothing else: all partitions share its one queue, so waiting here would stop them all."""

    @app.agent(topic, name="admit")  # type: ignore[untyped-decorator]
    async def admit(stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            origin = Origin(message.topic, message.partition, message.generation_id, message.offset)
            flow.admit(origin, message.key, message.value, message.headers or ())

    async def forget_lost(app: Any, revoked: Any, **rest: Any) -> None:
        flow.forget_lost()

    app.on_partitions_revoked.connect(forget_lost, weak=False)


def _failure(app: Any, serving: asyncio.Task[None]) -> str | None:
    if app.crashed:
        return f"Kafka: {app.crash_reason!r}"
    if serving.done():
        error = serving.exception()
        return "defect: " + repr(error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error)
    return None
