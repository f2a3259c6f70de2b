"""A transactional producer that stores the source position in the transaction of the rows it covers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # as documented

from connectors.errors import ConnectorError, MissingTopicError, TransientError
from connectors.kafka.client import ADMIN_TIMEOUT_SECONDS, ClientErrors, admin_result, kafka_error
from connectors.kafka.position import Position, encode_position, position_key
from connectors.router import HeaderPair, Record

BUFFER_KIB: Final = 64 * 1024
BATCH_BYTES: Final = 256 * 1024
FRAMING_BYTES: Final = 1024  # of a record batch and a record with many headers, generously
CALL_SECONDS: Final = 1.0

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class RecordTooLargeError(Exception):
    """Kafka would refuse this record for its size."""


def record_bytes_max(kafka: Mapping[str, Any], topics: Iterable[str], while_waiting: Callable[[], None]) -> int:
    """The size of record that each of these topics takes, by their ``max.message.bytes``, and that fits our buffer.

    Raises MissingTopicError for the first that does not exist, TransientError where Kafka does not answer,
    ConfigurationError where it refuses to.
    """
    errors = ClientErrors()
    admin = AdminClient(errors.configure(kafka))
    wanted = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))}
    futures = admin.describe_configs(list(wanted.values()), request_timeout=ADMIN_TIMEOUT_SECONDS)
    limits = []
    for topic, resource in wanted.items():
        try:
            config = admin_result(futures[resource], while_waiting)
        except KafkaException as exception:
            error = kafka_error(exception)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise MissingTopicError(topic) from None
            admin.poll(0)
            raise errors.explain(f"describe topic {topic}", error) from None
        except TimeoutError:
            raise errors.explain(f"describe topic {topic}", None) from None
        limits.append(int(config["max.message.bytes"].value))
    return max(1, min(*limits, BUFFER_KIB * 1024 // 4) - FRAMING_BYTES)


class TransactionalSink:
    """Rows and position in one Kafka transaction. Used by one thread."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        transactional_id: str,
        positions_topic: str,
        record_bytes_max: int,
        transaction_timeout_seconds: float,
        while_waiting: Callable[[], None],
    ) -> None:
        self._positions_topic = positions_topic
        self._while_waiting = while_waiting
        self._transaction_timeout_seconds = transaction_timeout_seconds
        self._errors = ClientErrors()
        self._is_open = False
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
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "delivery.report.only.error": True,
                    "on_delivery": self._errors.on_delivery,
                },
            )
        )

    def fence(self, deadline_seconds: float) -> None:
        """Take over the transactional id: an older producer can commit nothing from here on."""
        self._retrying("start transactions", deadline_seconds, self._producer.init_transactions)

    def add(self, record: Record) -> None:
        """Put a record into the transaction, beginning one if need be. May wait for room in the buffer.

        Raises RecordTooLargeError, with the transaction as it was, or TransientError.
        """
        self._begin()
        self._produce(record.topic, record.key, record.value, record.headers)

    def commit(self, position: Position) -> None:
        """Commit what was added together with the position. After an error the sink is of no more use."""
        self._begin()
        key = position_key(position.database, position.slot)
        self._produce(self._positions_topic, key, encode_position(position), [])
        self._retrying("commit", self._transaction_timeout_seconds, self._producer.commit_transaction)
        self._is_open = False

    def close(self) -> None:
        """Give up what is open. Waits a moment at most: what stays open is ended by the next fence."""
        try:
            self._producer.purge()
            if self._is_open:
                self._producer.abort_transaction(CALL_SECONDS)
        except KafkaException:
            pass
        finally:
            self._is_open = False

    def _begin(self) -> None:
        if not self._is_open:
            try:
                self._producer.begin_transaction()
            except KafkaException as exception:
                raise self._failure("begin a transaction", kafka_error(exception)) from None
            self._is_open = True

    def _produce(self, topic: str, key: bytes | None, value: bytes | None, headers: list[HeaderPair]) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
            except BufferError:
                self._producer.poll(0.1)
                self._while_waiting()
            except KafkaException as exception:
                error = kafka_error(exception)
                if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise RecordTooLargeError(error.str()) from None
                raise self._failure("take a record", error) from None
            else:
                return

    def _retrying(self, what: str, deadline_seconds: float, call: Callable[[float], None]) -> None:
        """Calls that may be resumed after a time-out are, so that the caller can do its duties between."""
        deadline = time.monotonic() + deadline_seconds
        while True:
            try:
                call(CALL_SECONDS)
            except KafkaException as exception:
                error = kafka_error(exception)
                if not error.retriable() or time.monotonic() >= deadline:
                    raise self._failure(what, error) from None
                self._while_waiting()
            else:
                return

    def _failure(self, what: str, error: KafkaError) -> ConnectorError:
        if error.code() in _FENCED:
            return TransientError("another connector with the same transactional id took over")
        return self._errors.explain(what, self._errors.first_refused or error)
