"""Rows and the source position in the same Kafka transactions, by two producers in turns.

A commit is several answers of the broker long. While a thread waits for them, the next rows go into the other
producer's transaction. Order per key, and that nothing is committed after something that failed, follow from three
rules:

- a transaction begins only when every record of the one before lies in its topic;
- it is committed only after the one before is, and never after one whose commit failed;
- a start takes over **both** transactional ids before it reads the stored position, so that nothing that was under
  way can be committed later.

Readers of committed records see them in the order of the log, so they do not see that there are two producers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # as documented

from connectors.errors import TransientError
from connectors.kafka.client import ADMIN_TIMEOUT_SECONDS, TopicQuestions
from connectors.kafka.committer import Committer
from connectors.kafka.position import Position, encode_position, position_key
from connectors.kafka.transactions import BUFFER_KIB, CALL_SECONDS, RecordTooLargeError, TransactionalProducer
from connectors.router import HeaderPair, Record

__all__ = ["RecordLimits", "RecordTooLargeError", "TransactionalSink", "record_bytes_max"]

GROWTH_MAX: Final = 16  # of a row as a record: JSON takes six bytes for some, and a column may stand in several places
WAITING_ROWS_MAX: Final = 500  # as objects of this process they take several times the room that the client needs
FRAMING_BYTES: Final = 1024  # of a record batch and a record with many headers, generously


RecordLimits: TypeAlias = Mapping[str, int]
"""The size in bytes of key, value and headers that each topic takes."""


def record_bytes_max(
    kafka: Mapping[str, Any], topics: Iterable[str], while_waiting: Callable[[], None]
) -> RecordLimits:
    """The size of record that each of these topics takes, by its ``max.message.bytes``, and that fits our buffer.

    Raises MissingTopicError for the first that does not exist, TransientError where Kafka does not answer,
    ConfigurationError where it refuses to.
    """
    questions = TopicQuestions(kafka, while_waiting)
    wanted = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))}
    futures = questions.admin.describe_configs(list(wanted.values()), request_timeout=ADMIN_TIMEOUT_SECONDS)
    limits: dict[str, int] = {}
    for topic, resource in wanted.items():
        config = questions.answer(futures[resource], topic, "describe")
        topic_max = min(int(config["max.message.bytes"].value), BUFFER_KIB * 1024 // 4)
        limits[topic] = max(1, topic_max - FRAMING_BYTES)
    return limits


class TransactionalSink:
    """Used by one thread, which calls ``while_waiting`` every second or so while Kafka makes it wait."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        transactional_id: str,
        positions_topic: str,
        record_bytes_max: RecordLimits,
        transaction_timeout_seconds: float,
        while_waiting: Callable[[], None],
    ) -> None:
        self._positions_topic = positions_topic
        self._while_waiting = while_waiting
        self._limits = record_bytes_max
        # Records for a transaction that may not begin yet.
        self._waiting: list[tuple[str, bytes | None, bytes | None, list[HeaderPair]]] = []
        self._unchecked_bytes = min(record_bytes_max.values()) // GROWTH_MAX
        self._producers = [
            TransactionalProducer(
                kafka,
                transactional_id=name,
                record_bytes_max=max(record_bytes_max.values()),
                transaction_timeout_seconds=transaction_timeout_seconds,
            )
            for name in transactional_ids(transactional_id)
        ]
        self._turn = self._producers[0]
        self._is_open = False
        self._committer = Committer()

    def fence(self, deadline_seconds: float) -> None:
        """Take over the transactional ids: an older connector can commit nothing from here on.

        Both at once, because each may wait for the broker to abort a transaction that a crash has left open.
        """
        first, second = self._producers
        beside = _FencingThread(second, deadline_seconds)
        beside.start()
        try:
            first.fence(deadline_seconds, self._while_waiting)
            beside.join(CALL_SECONDS)
            while beside.is_alive():
                self._while_waiting()
                beside.join(CALL_SECONDS)
        finally:
            beside.is_given_up = True
        if beside.failure is not None:
            raise beside.failure

    def put(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[HeaderPair], source_bytes: int
    ) -> None:
        """Put a record into the transaction, beginning one if need be. May wait for room in the buffer.

        While the transaction before is on its way to its topics, some records are kept here; then this waits for it.
        ``source_bytes`` is the size of the message that the record was made of. Raises RecordTooLargeError, with the
        transaction as it was, or ConnectorError.
        """
        if source_bytes > self._unchecked_bytes:
            _check_size(self._limits, topic, key, value, headers)
        if not self._is_open:
            if len(self._waiting) < WAITING_ROWS_MAX and not self._committer.is_flushed:
                self._waiting.append((topic, key, value, headers))
                return
            self._begin()
        try:
            # By position, partition, callbacks and time left open: names would cost a quarter of the call.
            self._turn.produce(topic, value, key, -1, None, None, 0, headers)
        except (BufferError, KafkaException):
            self._turn.put(topic, key, value, headers, self._while_waiting)

    def add(self, record: Record) -> None:
        """Like put, with the record's timestamp."""
        if not self._is_open:
            self._begin()
        _check_size(self._limits, record.topic, record.key, record.value, record.headers)
        self._turn.put(
            record.topic,
            record.key,
            record.value,
            record.headers,
            self._while_waiting,
            timestamp_ms=record.timestamp_ms,
        )

    def forward(self) -> None:
        """Send what is kept here, if it may go now. For a caller that has nothing else to put."""
        if self._waiting and not self._is_open and self._committer.is_flushed:
            self._begin()

    def hand_over(self, position: Position) -> None:
        """Commit what was put since the last time, together with the position, while the caller goes on.

        Raises what made an earlier transaction fail; the sink is of no more use then.
        """
        if not self._is_open:
            self._begin()
        key = position_key(position.database, position.slot)
        self._turn.put(self._positions_topic, key, encode_position(position), [], self._while_waiting)
        self._committer.hand_over(self._turn)
        self._is_open = False
        self._producers.reverse()
        self._turn = self._producers[0]

    def commit(self, position: Position) -> None:
        """Like hand_over, and wait until it is committed."""
        self.hand_over(position)
        self.wait_settled()

    @property
    def committed(self) -> int:
        """How many transactions were committed. Raises what made one fail."""
        return self._committer.committed

    @property
    def is_settled(self) -> bool:
        """Whether every transaction that was handed over is committed. Raises what made one fail."""
        return self._committer.is_settled

    def wait_settled(self) -> None:
        self._committer.wait_settled(self._while_waiting)

    def fileno(self) -> int:
        """Readable after records lie in their topics, after a commit and after a failure, until ``acknowledge``."""
        return self._committer.fileno()

    def acknowledge(self) -> None:
        self._committer.acknowledge()

    def close(self) -> None:
        """Give up what is open. Waits moments at most: what stays open is ended by the next fence."""
        self._committer.close()
        for producer in self._producers:
            producer.close()

    def _begin(self) -> None:
        # Then the transaction before that one, which was this producer's, is committed.
        self._committer.wait_flushed(self._while_waiting)
        self._turn.begin()
        self._is_open = True
        for topic, key, value, headers in self._waiting:
            self.put(topic, key, value, headers, 0)  # their sizes were looked at
        self._waiting.clear()


class _FencingThread(threading.Thread):
    """Fences one producer, for as long as somebody waits for it."""

    def __init__(self, producer: TransactionalProducer, deadline_seconds: float) -> None:
        super().__init__(name="fencing", daemon=True)
        self._producer = producer
        self._deadline_seconds = deadline_seconds
        self.is_given_up = False
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            self._producer.fence(self._deadline_seconds, self._check)
        except Exception as error:
            self.failure = error

    def _check(self) -> None:
        if self.is_given_up:
            raise TransientError("nobody waits for this producer any more")


def transactional_ids(transactional_id: str) -> tuple[str, str]:
    """The ids of the two producers. The first is the configured one."""
    return transactional_id, f"{transactional_id}.second"


def _check_size(
    limits: RecordLimits, topic: str, key: bytes | None, value: bytes | None, headers: list[HeaderPair]
) -> None:
    """Raises RecordTooLargeError for a record that the broker would refuse, with its whole transaction."""
    size = len(key or b"") + len(value or b"")
    size += sum(len(name) + len(content or b"") for name, content in headers)
    limit = limits.get(topic)
    if limit is not None and size > limit:
        raise RecordTooLargeError(f"message size of {size} bytes is more than topic {topic} takes ({limit})")
