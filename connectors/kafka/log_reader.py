"""The only partition of a small topic, read from its beginning to its end, and on from there as it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not declared so

from connectors.errors import KafkaUnavailableError
from connectors.kafka.client import ADMIN_TIMEOUT_SECONDS, ClientErrors, TopicQuestions, kafka_error

_POLL_SECONDS: Final = 0.5
_BATCH: Final = 500
_QUEUED_KIB: Final = 4 * 1024
_FETCH_WAIT_MS: Final = 500


def end_offset(kafka: Mapping[str, Any], topic: str, while_waiting: Callable[[], None]) -> int:
    """One past the last record, including those of transactions that are still open."""
    partition = TopicPartition(topic, 0)
    questions = TopicQuestions(kafka, while_waiting)
    futures = questions.admin.list_offsets(
        {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=ADMIN_TIMEOUT_SECONDS,
    )
    return int(questions.answer(futures[partition], topic, "tell the end of").offset)


class LogReader:
    """A read_committed reader in no group. Use it with ``with``; its memory does not grow with the topic."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        topic: str,
        while_waiting: Callable[[], None],
        *,
        fetch_wait_ms: int = _FETCH_WAIT_MS,
    ) -> None:
        """``fetch_wait_ms``: how long the broker keeps a question for which it has no record yet."""
        self._kafka = kafka
        self._topic = topic
        self._while_waiting = while_waiting
        self._errors = ClientErrors()
        self._consumer = Consumer(
            self._errors.configure_reader(
                kafka,
                topic,
                **{"fetch.wait.max.ms": fetch_wait_ms, "queued.max.messages.kbytes": _QUEUED_KIB},
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
        end = end_offset(self._kafka, self._topic, self._while_waiting)
        yield from self.read(range(end), time.monotonic() + deadline_seconds)

    def read(self, offsets: range, deadline: float) -> Iterator[Message]:
        """Committed records from the first of these offsets, or the one kept after it, to the last of them at least.

        ``deadline`` is a time of the monotonic clock. Raises what read_to_end does.
        """
        self._consumer.assign([TopicPartition(self._topic, 0, offsets.start or OFFSET_BEGINNING)])
        if not offsets:
            return
        while time.monotonic() < deadline:
            messages = self._consume(_POLL_SECONDS)
            if not messages:
                self._while_waiting()
            for message in messages:
                error, offset = message.error(), message.offset()
                if error is None:
                    yield message
                # Known by EOF, because what lies before the end may be markers of transactions. read_committed meets
                # it where the first open transaction begins, so reading goes on until the true end.
                elif error.code() == KafkaError._PARTITION_EOF and offset is not None and offset >= offsets.stop:
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
