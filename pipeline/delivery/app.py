"""The Faust application: one topic, one group, and only those of Faust's features that keep every message.

What each setting is for:

- ``stream_wait_empty=False``: a rebalance must not wait for requests in flight; the ledger's claim makes the second
  reading harmless.
- ``table_standby_replicas=0``, ``topic_disable_leader``: no tables, so Kafka's own assignor instead of Faust's.
- ``topic_allow_declare=False``: topics are created by ``outrider topics apply``, and nowhere else.
- ``stream_buffer_maxsize``, ``broker_max_poll_records``: one fetch must be far smaller than the stream's buffer, because
  an overflow holds up every partition.
- ``consumer_metadata_max_age_ms``: how soon a topic that was made again is seen; the driver's own five minutes leave it
  unread for as long.
- ``broker_max_poll_interval``: a member whose partitions are all held back for long must stay in the group.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import faust
from yarl import URL

from pipeline.delivery.transport import OrderedTransport, broker_addresses
from pipeline.settings import Settings
from topics.security import KafkaConnection

COMMIT_INTERVAL_SECONDS = 0.5
POLL_RECORDS = 500
STREAM_BUFFER_EVENTS = 4096
POLL_INTERVAL_SECONDS = 86_400.0
REQUEST_TIMEOUT_SECONDS_MIN = 40.0
METADATA_AGE_MS = 10_000


class DeliveryApp(faust.App):  # type: ignore[misc]  # Faust has no types
    """Faust's application without its data directory: nothing is kept on disk."""

    def _create_directories(self) -> None:
        pass


# mode gives each subclass a logger of its module; what it says is Faust's.
DeliveryApp.logger = faust.App.logger


def build_app(settings: Settings) -> tuple[Any, Any]:
    """The application and the dispatch topic. Reads no environment and connects to nothing."""
    urls = [URL(f"kafka://{address}") for address in broker_addresses(settings.kafka_bootstrap_servers)]
    session_timeout = settings.worker_session_timeout_seconds
    app = DeliveryApp(
        settings.name("delivery"),
        broker=urls,
        broker_credentials=broker_credentials(settings.kafka),
        broker_client_id=settings.name("worker"),
        broker_commit_interval=COMMIT_INTERVAL_SECONDS,
        broker_max_poll_records=POLL_RECORDS,
        broker_max_poll_interval=POLL_INTERVAL_SECONDS,
        broker_session_timeout=session_timeout,
        broker_heartbeat_interval=min(3.0, session_timeout / 3),
        broker_request_timeout=max(REQUEST_TIMEOUT_SECONDS_MIN, session_timeout + 10.0),
        consumer_metadata_max_age_ms=METADATA_AGE_MS,
        # Only a name that outlives the process may keep its partitions over a restart.
        consumer_group_instance_id=settings.worker_id,
        stream_buffer_maxsize=STREAM_BUFFER_EVENTS,
        stream_wait_empty=False,
        table_standby_replicas=0,
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        key_serializer="raw",
        value_serializer="raw",
        datadir=Path(tempfile.gettempdir()),
        autodiscover=False,
    )
    app.transport = OrderedTransport(urls, app)
    topic = app.topic(settings.name("dispatch"), key_type=bytes, value_type=bytes)
    return app, topic


def broker_credentials(kafka: KafkaConnection) -> Any:
    """The connection's TLS and SASL settings in Faust's terms; None for plaintext."""
    context = kafka.ssl_context()
    if kafka.uses_sasl:
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password,
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context=context)
