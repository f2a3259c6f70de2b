"""Waiting for the services that the worker needs: one line for each failed try, and an end to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.core.sealing import Vault
from pipeline.ledger.destinations import load_destinations
from pipeline.ledger.pool import Pool
from pipeline.settings import Settings

log = structlog.get_logger(__name__)

START_SECONDS = 120.0
BACKOFF_SECONDS_FIRST = 0.5
BACKOFF_SECONDS_MAX = 5.0
ANSWER_SECONDS = 5.0


class NotReadyError(Exception):
    """A service does not answer; the text names it, and the setting to look at."""


async def wait_for_database(pool: Pool) -> None:
    """Return when the ledger can be read. Raises NotReadyError after START_SECONDS.

    Raises at once what waiting does not mend: a schema that is missing, a role that may not.
    """

    async def read() -> None:
        try:
            await load_destinations(pool, [], Vault())
        except psycopg.OperationalError as error:
            raise NotReadyError(
                f"PostgreSQL does not answer ({_one_line(error)}); check OUTRIDER_POSTGRES_DSN, and that the server runs"
            ) from None

    await _until_ready(read)


async def wait_for_topics(settings: Settings) -> None:
    """Return when the brokers know the topics that the worker uses. Raises NotReadyError after START_SECONDS."""
    client = AdminClient({**settings.kafka.librdkafka(), "log_level": 0})
    topics = (settings.name("dispatch"), settings.name("quarantine"))

    async def look() -> None:
        try:
            metadata = await asyncio.to_thread(client.list_topics, timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise NotReadyError(
                f"Kafka does not answer at {settings.kafka_bootstrap_servers} ({error.args[0].str()}); "
                "check OUTRIDER_KAFKA_BOOTSTRAP_SERVERS and OUTRIDER_KAFKA_SECURITY_PROTOCOL, and that the broker runs"
            ) from None
        missing = [topic for topic in topics if topic not in metadata.topics]
        if missing:
            raise NotReadyError(f"Kafka has no topic {' and no '.join(missing)}: run outrider topics apply")

    await _until_ready(look)


async def _until_ready(attempt: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    backoff_seconds = BACKOFF_SECONDS_FIRST
    while True:
        try:
            return await attempt()
        except NotReadyError as error:
            if loop.time() + backoff_seconds > deadline:
                raise
            log.warning("waiting", reason=str(error), retry_seconds=backoff_seconds)
        await asyncio.sleep(backoff_seconds)
        backoff_seconds = min(backoff_seconds * 2, BACKOFF_SECONDS_MAX)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
