"""``outrider run connector``: the outbox and the attempt log into their topics."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

import structlog
from prometheus_client import REGISTRY

from connectors.config import ConnectorConfig
from connectors.connector import Connector
from connectors.errors import ConfigurationError, MissingPublicationError, MissingTopicError
from connectors.router import ColumnValue, Header, JsonValue, Route
from connectors.start_plan import RefusedStartError
from connectors.stop import StopSignal
from connectors.watch import Watch
from pipeline.cli.connector_metrics import ConnectorMetrics
from pipeline.cli.connector_refusals import how_to_go_on
from pipeline.cli.errors import CommandError
from pipeline.cli.listening import listening, on_signal
from pipeline.health import serve_health
from pipeline.settings import Settings
from topics.declarations import ATTEMPTS, CONTROL, DISPATCH, POSITIONS, QUARANTINE

_log = structlog.get_logger(__name__)

ATTEMPT_COLUMNS: Final = (
    "attempt_id",
    "recorded_at",
    "delivery_id",
    "event_id",
    "event_type",
    "destination_id",
    "attempt",
    "dispatch_seq",
    "worker_id",
    "result",
    "outcome",
    "status",
    "ambiguous",
    "error",
    "response_excerpt",
    "retry_after_seconds",
    "next_attempt_at",
    "key_ids",
    "payload_sha256",
    "started_at",
    "duration_seconds",
    "response_headers",
    "dns_seconds",
    "connect_seconds",
    "tls_seconds",
    "first_byte_seconds",
)


def outbox_routes(settings: Settings) -> tuple[Route, ...]:
    """The two published tables and the contracts of their topics, see topics/declarations.py."""
    dispatch = Route(
        namespace="outrider",
        table="dispatch_outbox",
        topic=settings.name(DISPATCH),
        key="destination_id",
        value=ColumnValue("payload"),
        headers=(
            Header("id", "message_id"),
            Header("delivery_id", "delivery_id"),
            Header("dispatch_seq", "dispatch_seq"),
            Header("event_id", "event_id"),
            Header("event_type", "event_type"),
            Header("content_type", "content_type"),
            Header("reason", "reason"),
            Header("headers", "headers", leave_out="{}"),
        ),
        id="message_id",
        time="created_at",
        snapshot_order=("outbox_id",),
        later_rows_of_key=settings.connector_later_rows,
    )
    attempts = Route(
        namespace="outrider",
        table="delivery_attempt",
        topic=settings.name(ATTEMPTS),
        key="destination_id",
        value=JsonValue(ATTEMPT_COLUMNS),
        headers=(Header("id", "attempt_id"), Header("delivery_id", "delivery_id"), Header("result", "result")),
        id="attempt_id",
        time="recorded_at",
        snapshot_order=("attempt_id",),
        later_rows_of_key=settings.connector_later_rows,
    )
    return dispatch, attempts


def connector_config(settings: Settings) -> ConnectorConfig:
    return ConnectorConfig(
        conninfo=settings.postgres_conninfo,
        kafka=settings.kafka.librdkafka(),
        slot=settings.connector_slot,
        publication=settings.connector_publication,
        routes=outbox_routes(settings),
        transactional_id=settings.name(f"connector.{settings.connector_slot}"),
        positions_topic=settings.name(POSITIONS),
        quarantine_topic=settings.name(QUARANTINE),
        control_topic=settings.name(CONTROL),
        repair=settings.connector_repair,
        transaction_rows=settings.connector_transaction_rows,
        transaction_bytes=settings.connector_transaction_bytes,
        held_keys_max=settings.connector_held_keys_max,
        safe_wal_warning_bytes=settings.connector_safe_wal_warning_bytes,
    )


def run_connector(settings: Settings) -> int:
    """Stream until SIGTERM or SIGINT. Raises CommandError where the start is refused."""
    # Rows are many small objects without cycles, and nothing of the start becomes garbage.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    try:
        return asyncio.run(_run(settings))
    except MissingTopicError as error:
        raise CommandError(f"{error.topic} does not exist in Kafka: run outrider topics apply") from None
    except MissingPublicationError as error:
        raise CommandError(f"{error.what}: run outrider migrate up") from None
    except RefusedStartError as error:
        raise CommandError(f"{error.what}. {how_to_go_on(error.plan)}") from None
    except ConfigurationError as error:
        raise CommandError(str(error)) from None


async def _run(settings: Settings) -> int:
    """The connector has a thread of its own; this one answers the listener and the signals."""
    stop = StopSignal()
    on_signal(stop.set)
    config = connector_config(settings)
    connector = Connector(config, stop)
    metrics = ConnectorMetrics(connector.status)
    REGISTRY.register(metrics)

    def ready() -> tuple[bool, str]:
        return connector.status.ready(time.monotonic())

    try:
        async with listening("HEALTH", serve_health(settings.health_host, settings.health_port, ready)):
            with Watch(config, connector.status, stop):
                try:
                    await asyncio.to_thread(connector.run)
                finally:
                    stop.set()
    finally:
        REGISTRY.unregister(metrics)
    _log.info("stopped")
    return 0
