"""The delivery worker as a whole: what it opens, how it runs, and how it ends.

It ends with 0 when it was asked to (SIGTERM or SIGINT) and drained: it reads no further, waits for requests in flight,
commits, and leaves the group. It ends with 1 when Faust has crashed or a delivery met a defect; whatever was in
flight then is found by its lease.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections import deque
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import structlog

from pipeline.delivery.app import build_app
from pipeline.delivery.destination_metrics import DestinationMetrics, registered
from pipeline.delivery.flow import DeliveryFlow
from pipeline.delivery.quarantine import Quarantine
from pipeline.delivery.repeated_lines import quieten
from pipeline.delivery.sender import Sender
from pipeline.delivery.spans import open_spans
from pipeline.delivery.start_checks import START_SECONDS, NotReadyError, wait_for_database, wait_for_topics
from pipeline.delivery.targets import target_rules
from pipeline.delivery.transport import Origin
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.settings import Settings

log = structlog.get_logger(__name__)

STOP_SECONDS = 20.0
COMMIT_SECONDS = 5.0
LOOK_SECONDS = 0.1
# While a broker is away, each of these repeats itself several times a second.
FAUST_LOGGERS = (
    "aiokafka",
    "aiokafka.conn",
    "aiokafka.cluster",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.producer.sender",
    "faust.transport.drivers.aiokafka",
)
REBALANCES_MANY, REBALANCES_SECONDS = 5, 60.0


class Worker:
    """One worker process. ``run`` it once, in an event loop of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        name = settings.worker_id or f"{socket.gethostname()}-{os.getpid()}"
        # Who holds a lease: one process, also where two have been given the same name.
        self.worker_id = f"{name}.{secrets.token_hex(4)}"
        self._stopping = asyncio.Event()
        self._state = "starting"
        self._app: Any = None
        self._flow: DeliveryFlow | None = None
        self.left_behind = False
        """Whether Faust could not be stopped: its tasks and threads may ignore that they are cancelled."""

    def stop(self) -> None:
        """Ask it to drain and end."""
        self._stopping.set()

    def ready(self) -> tuple[bool, str]:
        """Whether it has its partitions, reads them and gets on, with the state in a word."""
        if self._state == "running" and self._app.rebalancing:
            return False, "rebalancing"
        if self._state == "running" and self._flow is not None and self._flow.is_stalled:
            return False, "stalled"
        return self._state == "running", self._state

    async def run(self) -> int:
        """Exit status of the program. Raises NotReadyError where a service is away at the start."""
        settings = self._settings
        quieten(FAUST_LOGGERS)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serve_health(settings.health_host, settings.health_port, self.ready))
            pool = await stack.enter_async_context(
                open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "worker", plans_once=True)
            )
            if not await self._unless_stopped(wait_for_database(pool)):
                return 0
            if not await self._unless_stopped(wait_for_topics(settings)):
                return 0
            sender = await stack.enter_async_context(
                Sender(concurrency=settings.worker_concurrency, rules=target_rules(settings))
            )
            spans = open_spans()
            stack.callback(spans.close)
            quarantine = await stack.enter_async_context(Quarantine(settings))
            self._app, topic = build_app(settings)
            self._flow = flow = DeliveryFlow(
                settings,
                self.worker_id,
                messages=self._app.consumer,
                pool=pool,
                sender=sender,
                quarantine=quarantine,
                spans=spans,
            )
            _attach(self._app, topic, flow)
            stack.enter_context(
                registered(DestinationMetrics(flow.standings, named_max=settings.worker_metrics_destinations_max))
            )
            return await self._work(flow)

    async def _work(self, flow: DeliveryFlow) -> int:
        app = self._app
        serving = asyncio.create_task(flow.serve())
        try:
            if not await _within(START_SECONDS, app.start()):
                raise NotReadyError(f"Kafka let the worker not in within {START_SECONDS:g} s; see the lines before")
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
        if not await _within(COMMIT_SECONDS, consumer.commit()):
            log.warning("offsets not committed; the next owner reads again what was done")

    async def _stop_app(self) -> None:
        if not await _within(STOP_SECONDS, self._app.stop()):
            self.left_behind = True
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

    assigned_at: deque[float] = deque(maxlen=REBALANCES_MANY)

    async def forget_lost(app: Any, revoked: Any, **rest: Any) -> None:
        flow.forget_lost()

    async def watch_rebalances(app: Any, assigned: Any, **rest: Any) -> None:
        now = asyncio.get_running_loop().time()
        assigned_at.append(now)
        if len(assigned_at) == REBALANCES_MANY and now - assigned_at[0] < REBALANCES_SECONDS:
            assigned_at.clear()
            # Two members under one name throw each other out for ever, and Kafka's client does not say so.
            log.warning(
                "the group rebalances again and again; does another worker have the same OUTRIDER_WORKER_ID?",
                worker_id=app.conf.consumer_group_instance_id,
            )

    app.on_partitions_revoked.connect(forget_lost, weak=False)
    app.on_partitions_assigned.connect(watch_rebalances, weak=False)


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> bool:
    """Whether it was done in time. It is not waited for beyond that: Faust's waits swallow being cancelled."""
    task = asyncio.create_task(work)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        return False
    error = task.exception()
    if error is not None:
        log.warning("failed while ending", error=repr(error))
    return error is None


def _failure(app: Any, serving: asyncio.Task[None]) -> str | None:
    if app.crashed:
        return f"Kafka: {app.crash_reason!r}"
    if serving.done():
        error = serving.exception()
        return "defect: " + repr(error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error)
    return None
