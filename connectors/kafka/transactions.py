"""One transactional producer: begin, put, flush, commit; and which failure means what."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.errors import ConnectorError, FencedError
from connectors.kafka.client import ClientErrors, kafka_error
from connectors.router import HeaderPair

BUFFER_KIB: Final = 32 * 1024
BATCH_BYTES: Final = 256 * 1024
CALL_SECONDS: Final = 1.0
LINGER_MS: Final = 2

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class RecordTooLargeError(Exception):
    """Kafka would refuse this record for its size."""


class TransactionalProducer:
    """Used by one thread at a time. After an error other than RecordTooLargeError it is of no more use.

    ``while_waiting`` arguments are called every second or so while a call waits, and may raise to end the waiting.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        transactional_id: str,
        record_bytes_max: int,
        transaction_timeout_seconds: float,
    ) -> None:
        self._timeout_seconds = transaction_timeout_seconds
        self._errors = ClientErrors()
        self.is_open = False
        timeout_ms = int(transaction_timeout_seconds * 1000)
        self._producer = Producer(
            self._errors.configure(
                kafka,
                **{
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": timeout_ms,
                    # A record gives up before its transaction does, so that the cause is told.
                    "message.timeout.ms": min(timeout_ms * 3 // 4, 60_000),
                    "acks": "all",
                    "enable.idempotence": True,
                    # The same partition for a key as Java clients choose.
                    "partitioner": "murmur2_random",
                    "message.max.bytes": max(1000, record_bytes_max),
                    "batch.size": min(BATCH_BYTES, max(1, record_bytes_max)),
                    "queue.buffering.max.kbytes": BUFFER_KIB,
                    # A flush does not wait for it; it only lets batches fill while rows keep coming.
                    "linger.ms": LINGER_MS,
                    # Small requests follow each other within a transaction, and none is to wait for an ACK.
                    "socket.nagle.disable": True,
                    "compression.type": "lz4",
                    "delivery.report.only.error": True,
                    "on_delivery": self._errors.on_delivery,
                },
            )
        )
        self.produce = self._producer.produce
        """For the hot path: the client's own call, which raises BufferError and KafkaException."""

    def fence(self, deadline_seconds: float, while_waiting: Callable[[], None]) -> None:
        """Take over the transactional id: an older producer can commit nothing from here on."""
        with suppress(KafkaException):  # which the call below meets as well, and tells
            # Asked before it has a connection, the client looks for the coordinator only half a second later.
            self._producer.cluster_id(CALL_SECONDS)
        self._retrying("start transactions", deadline_seconds, self._producer.init_transactions, while_waiting)

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as exception:
            raise self._failure("begin a transaction", kafka_error(exception)) from None
        self.is_open = True

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[HeaderPair],
        while_waiting: Callable[[], None],
        *,
        timestamp_ms: int | None = None,
    ) -> None:
        """Add a record to the open transaction, waiting for room if need be. ``timestamp_ms`` is above 0.

        Raises RecordTooLargeError, with the transaction as it was, or ConnectorError.
        """
        while True:
            try:
                # To the client, 0 means the present time.
                self._producer.produce(topic, value, key, headers=headers, timestamp=timestamp_ms or 0)
            except BufferError:
                self._producer.poll(0.1)
                while_waiting()
            except KafkaException as exception:
                error = kafka_error(exception)
                if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise RecordTooLargeError(error.str()) from None
                raise self._failure("take a record", error) from None
            else:
                return

    def flush(self, while_waiting: Callable[[], None]) -> None:
        """Every record of the transaction lies in its topic, or has failed: then the commit will."""
        deadline = time.monotonic() + self._timeout_seconds
        while self._producer.flush(CALL_SECONDS):
            if time.monotonic() >= deadline:
                raise self._failure("take the records in time", None)
            while_waiting()

    def commit(self, while_waiting: Callable[[], None]) -> None:
        self._retrying("commit", self._timeout_seconds, self._producer.commit_transaction, while_waiting)
        self.is_open = False

    def close(self) -> None:
        """Give up what is open. Waits a moment at most: what stays open is ended by the next fence."""
        try:
            self._producer.purge()
            if self.is_open:
                self._producer.abort_transaction(CALL_SECONDS)
        except KafkaException:
            pass
        finally:
            self.is_open = False

    def _retrying(
        self,
        what: str,
        deadline_seconds: float,
        call: Callable[[float], None],
        while_waiting: Callable[[], None],
    ) -> None:
        """Calls that may be resumed after a time-out are, so that the caller can do its duties between."""
        deadline = time.monotonic() + deadline_seconds
        while True:
            try:
                call(CALL_SECONDS)
            except KafkaException as exception:
                error = kafka_error(exception)
                if not error.retriable() or time.monotonic() >= deadline:
                    raise self._failure(what, error) from None
                while_waiting()
            else:
                return

    def _failure(self, what: str, error: KafkaError | None) -> ConnectorError:
        if error is not None and error.code() in _FENCED:
            return FencedError("another connector with the same transactional id took over")
        return self._errors.explain(what, self._errors.first_refused or error)
