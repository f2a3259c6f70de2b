"""Where messages go that cannot be understood: the quarantine topic, unchanged, with the reason beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from pipeline.delivery.transport import Origin
from pipeline.settings import Settings

log = structlog.get_logger(__name__)

Headers = Sequence[tuple[str, bytes | None]]
RETRY_SECONDS = 1.0
REASON_LENGTH_MAX = 500


class Quarantine:
    """An idempotent producer of its own, made when it is first needed. Use it with ``async with``."""

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
        if self._producer is not None:
            await self._producer.stop()

    async def put(self, origin: Origin, key: bytes | None, value: bytes | None, headers: Headers, reason: str) -> None:
        """Return when the message is there; while Kafka refuses, try again. A crash in between may store it twice."""
        where = f"{origin.topic}/{origin.partition}/{origin.offset}"
        log.error("message quarantined", message_at=where, reason=reason)
        added = (("quarantine_reason", reason[:REASON_LENGTH_MAX].encode()), ("quarantine_origin", where.encode()))
        while True:
            try:
                producer = await self._open()
                await producer.send_and_wait(self._topic, value=value, key=key, headers=[*headers, *added])
            except MessageSizeTooLargeError:
                # With the reason it is above the topic's limit; it stays where it was, and here is where that is.
                value, headers = None, ()
            except KafkaError as error:
                log.warning("quarantine refused, trying again", topic=self._topic, error=repr(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

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
                    enable_idempotence=True,
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
