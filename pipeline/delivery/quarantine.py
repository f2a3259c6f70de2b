"""Where messages go that cannot be understood: the quarantine topic, unchanged, with the reason beside them.

Putting a message there is total, whatever the message holds: it ends with a record in the topic, as whole as the topic
takes it, or with a line in the log and a count. It never raises, so that no message can end its reader.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import BrokerResponseError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from pipeline.delivery import metrics
from pipeline.delivery.transport import Origin
from pipeline.settings import Settings
from topics.quarantine_records import REASON_LENGTH_MAX, Headers, QuarantineRecord, quarantine_records

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
# Answers in a row that no waiting mends (a missing right, say), each from a producer of its own.
REFUSALS_MAX = 30
CLOSE_SECONDS = 5.0


class Quarantine:
    """A producer of its own, made when it is first needed. Use it with ``async with``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = settings.name("quarantine")
        self._producer: Any = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(self._producer)

    async def put(self, origin: Origin, key: bytes | None, value: bytes | None, headers: Headers, reason: str) -> None:
        """Return when the message is there, or cannot be; while Kafka is away, wait. Never raises.

        A crash or a lost answer may store it twice.
        """
        where = f"{origin.topic}/{origin.partition}/{origin.offset}"
        log.error("message quarantined", message_at=where, reason=reason[:REASON_LENGTH_MAX])
        try:
            for record in quarantine_records(where, key, value, headers, reason):
                if await self._store(record, where):
                    return
        except Exception:  # whatever it is, a message must not end its reader
            log.exception("message cannot be quarantined", message_at=where)
        metrics.QUARANTINE_NOT_STORED.inc()
        log.error("message passed over, quarantine did not take it", message_at=where, topic=self._topic)

    async def _store(self, record: QuarantineRecord, where: str) -> bool:
        """Whether the topic has it. False where it is too large, or is refused again and again."""
        refusals = 0
        while refusals < REFUSALS_MAX:
            producer = None
            try:
                producer = await self._open()
                await producer.send_and_wait(
                    self._topic, value=record.value, key=record.key, headers=list(record.headers)
                )
            except (MessageSizeTooLargeError, RecordListTooLargeError):
                return False
            except KafkaError as error:
                if isinstance(error, BrokerResponseError) and not error.retriable:
                    refusals += 1
                log.warning("quarantine refused, trying again", topic=self._topic, message_at=where, error=repr(error))
                if not error.retriable:
                    # Such errors may be the producer's state, which it would repeat for ever.
                    await self._close(producer)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return True
        return False

    async def _close(self, producer: Any) -> None:
        """Close a producer, unless another message's error has done so."""
        if producer is None or producer is not self._producer:
            return
        self._producer = None
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await producer.stop()
        except (TimeoutError, KafkaError) as error:
            log.warning("producer of the quarantine not closed", error=repr(error))

    async def _open(self) -> Any:
        async with self._lock:
            if self._producer is None:
                kafka = self._settings.kafka
                producer = AIOKafkaProducer(
                    bootstrap_servers=kafka.bootstrap_servers,
                    security_protocol=kafka.security_protocol.upper(),
                    ssl_context=kafka.ssl_context(),
                    sasl_mechanism=kafka.sasl_mechanism or "PLAIN",
                    sasl_plain_username=kafka.sasl_username,
                    sasl_plain_password=kafka.sasl_password,
                    # Not idempotent: after one record that is refused, every later one would be out of sequence.
                    acks="all",
                    # The broker's limit decides, not this client's.
                    max_request_size=2**31 - 1,
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer
