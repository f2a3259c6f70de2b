"""``outrider run connector``: the outbox and the attempt log into their topics."""

from __future__ import annotations

import gc
import signal
from typing import Final

import structlog

from connectors.config import ConnectorConfig
from connectors.connector import Connector
from connectors.errors import ConfigurationError, MissingPublicationError, MissingTopicError
from connectors.router import ColumnValue, Header, JsonValue, Route
from connectors.stop import StopSignal
from pipeline.cli.errors import CommandError
from pipeline.settings import Settings
from topics.declarations import ATTEMPTS, DISPATCH, POSITIONS, QUARANTINE

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
        snapshot_order=("outbox_id",),
    )
    attempts = Route(
        namespace="outrider",
        table="delivery_attempt",
        topic=settings.name(ATTEMPTS),
        key="destination_id",
        value=JsonValue(ATTEMPT_COLUMNS),
        headers=(Header("id", "attempt_id"), Header("delivery_id", "delivery_id"), Header("result", "result")),
        snapshot_order=("attempt_id",),
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
        transaction_rows=settings.connector_transaction_rows,
        transaction_bytes=settings.connector_transaction_bytes,
    )


def run_connector(settings: Settings) -> int:
    """Stream until SIGTERM or SIGINT. Raises CommandError where the start is refused."""
    stop = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Rows are many small objects without cycles: looking for cycles among them costs a tenth of the speed.
    gc.freeze()
    gc.disable()
    try:
        Connector(connector_config(settings), stop).run()
    except MissingTopicError as error:
        raise CommandError(f"{error.topic} does not exist in Kafka: run outrider topics apply") from None
    except MissingPublicationError as error:
        raise CommandError(f"{error}: run outrider migrate up") from None
    except ConfigurationError as error:
        raise CommandError(str(error)) from None
    _log.info("stopped")
    return 0
