"""The only partition of a small topic, read from its beginning to its end, and on from there as it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from connectors.errors import KafkaUnavailableError
from connectors.kafka.client import ClientErrors, kafka_error
from connectors.kafka.position import end_offset

_POLL_SECONDS: Final = 0.5
_BATCH: Final = 500
_QUEUED_KIB: Final = 4 * 1024


class LogReader:
    """A read_committed reader in no group. Use it with ``with``; its memory does not grow with the topic."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, while_waiting: Callable[[], None]) -> None:
        self._kafka = kafka
        self._topic = topic
        self._while_waiting = while_waiting
        self._errors = ClientErrors()
        self._consumer = Consumer(
            self._errors.configure(
                kafka,
                **{
                    # Needed by the client, never used: offsets are neither stored nor committed.
                    "group.id": f"{topic}.reader",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": 500,
                    "queued.max.messages.kbytes": _QUEUED_KIB,
                },
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def read_to_end(self, deadline_seconds: float) -> Iterator[Message]:
        """Every committed record from the first to what is the end now; where other transactions are open, their end
        is waited for. What is read twice begins at the first again.

        Raises MissingTopicError, ConfigurationError, or TransientError where the end is not reached in time.
        """
        deadline = time.monotonic() + deadline_seconds
        end = end_offset(self._kafka, self._topic, self._while_waiting)
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        if end == 0:
            return
        while time.monotonic() < deadline:
            messages = self._consume(_POLL_SECONDS)
            if not messages:
                self._while_waiting()
            for message in messages:
                error, offset = message.error(), message.offset()
                if error is None:
                    yield message
                # Known by EOF, because what lies before the end may be markers of transactions.
                elif error.code() == KafkaError._PARTITION_EOF and offset is not None and offset >= end:
                    return
        raise KafkaUnavailableError(f"topic {self._topic} could not be read to its end (does a transaction hang?)")

    def poll(self, seconds: float = 0.0) -> list[Message]:
        """What has come since the last call, waiting so long for it. Raises TransientError or ConfigurationError."""
        return [message for message in self._consume(seconds) if message.error() is None]

    def _consume(self, seconds: float) -> list[Message]:
        try:
            # A batch alone would wait until it is full.
            first = self._consumer.poll(seconds)
            messages = [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]
        except KafkaException as exception:
            raise self._errors.explain(f"give topic {self._topic}", kafka_error(exception)) from None
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise self._errors.explain(f"give topic {self._topic}", error)
        return messages
