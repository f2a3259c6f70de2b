"""Wake-ups from the topic ``wakeups``: a record's key is a source's id, its value nothing.

Offsets are committed when the wake-ups lie in the ledger. A record that is read again wakes again, which is harmless; any
number of them in one read are one call for each source. While Kafka is away, the clocks and the other calls go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import structlog
from confluent_kafka import Consumer, KafkaException, Message

from pipeline.reconcile.backoff import backoff_seconds
from pipeline.settings import Settings
from topics.declarations import WAKEUPS

BATCH_RECORDS = 1_000
POLL_SECONDS = 0.5
SESSION_TIMEOUT_MS = 10_000
QUEUED_KILOBYTES = 1_024

_log = structlog.get_logger(__name__)

Wake = Callable[[set[str]], Awaitable[None]]
"""Put the wake-ups of these sources on record. Called in the event loop."""


async def read_wakeups(settings: Settings, wake: Wake, stopping: asyncio.Event) -> None:
    """Pass on what comes until ``stopping``. Where Kafka or the ledger is lost, or the topic missing, it is tried again."""
    failures = 0
    topic = settings.name(WAKEUPS)
    while not stopping.is_set():
        consumer = Consumer(_configuration(settings))
        try:
            consumer.subscribe([topic])
            while not stopping.is_set():
                records = await asyncio.to_thread(consumer.consume, BATCH_RECORDS, POLL_SECONDS)
                keys = [record.key() for record in records if not _is_error(record)]
                if keys:
                    await wake({_text(key) for key in keys if key is not None})
                    await asyncio.to_thread(consumer.commit, asynchronous=False)
                    failures = 0
        except (KafkaException, psycopg.OperationalError) as error:
            failures += 1
            if failures == 1:
                why = error.args[0].str() if isinstance(error, KafkaException) else " ".join(str(error).split())
                _log.warning("wake-ups by Kafka are away, others go on", topic=topic, error=why)
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff_seconds(failures)):
                    await stopping.wait()
        finally:
            await asyncio.to_thread(consumer.close)


def _is_error(record: Message) -> bool:
    """Whether it stands for a passing trouble of the client's. Raises KafkaException for one that does not pass."""
    error = record.error()
    if error is None:
        return False
    if not error.retriable():
        raise KafkaException(error)
    return True


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")


def _configuration(settings: Settings) -> dict[str, Any]:
    return {
        **settings.kafka.librdkafka(),
        "group.id": settings.name(WAKEUPS),
        "enable.auto.commit": False,
        # A call from before the first start is worth a look as well.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "queued.max.messages.kbytes": QUEUED_KILOBYTES,
        # Its own lines repeat themselves many times a second while a broker is away.
        "log_level": 0,
    }
