"""Stretches of a topic, read in batches as a read_committed consumer sees them. Memory does not grow with them.

The consumer belongs to the run's own group, so that every tool shows how far it is; what counts is the cursor in the
ledger, which moves in the transaction that takes a batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place, Stretch
from pipeline.offsets.read_messages import Listening, reader_configuration
from pipeline.replay.errors import ReplayError
from topics.security import KafkaConnection

BATCH: Final = 2_000
QUEUED_KIB: Final = 4 * 1024
QUEUED_MESSAGES: Final = 5_000
FETCH_BYTES: Final = 128 * 1024
"""Of a partition at once, as it lies in the log: compressed, it may be twenty times as much in memory. A larger message comes
alone."""
COMMIT_SECONDS: Final = 2.0
GAP_OFFSETS: Final = 2
"""Offsets without a message beside each other that are worth a question: one may be a transaction's marker."""
QUESTION_SECONDS: Final = 10.0


@dataclass(slots=True)
class Batch:
    """Messages, and how far they bring each partition."""

    messages: list[tuple[Place, Message]] = field(default_factory=list)
    reached: dict[Place, int] = field(default_factory=dict)
    removed: dict[Place, int] = field(default_factory=dict)
    """Offsets that retention took before they were read."""


class TopicScan:
    """Use it with ``with``. Batches may be empty, so that the caller can look up what is wished meanwhile."""

    def __init__(self, connection: KafkaConnection, group: str, stretches: Mapping[Place, Stretch]) -> None:
        self._stretches = {place: stretch for place, stretch in stretches.items() if stretch.span}
        self._next = {place: stretch.start for place, stretch in self._stretches.items()}
        self._connection = connection
        self._group = group
        self._reached = dict[Place, int]()
        self._commit_at = time.monotonic()
        self._consumer = Consumer(
            reader_configuration(
                connection,
                group,
                queued_max_messages_kbytes=QUEUED_KIB,
                queued_min_messages=QUEUED_MESSAGES,
                max_partition_fetch_bytes=FETCH_BYTES,
                fetch_max_bytes=8 * FETCH_BYTES,
            )
        )

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(p.topic, p.partition, s.start) for p, s in self._stretches.items()])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._commit()
        self._consumer.close()

    def batches(self) -> Iterator[Batch]:
        """Until the end of every stretch. Raises ReplayError, or OffsetsError where Kafka says nothing for long."""
        open_places = set(self._stretches)
        listening = Listening(self._consumer)
        try:
            while open_places:
                batch = Batch()
                for place, message in listening.consume(BATCH):
                    if place in open_places and self._take(batch, place, message):
                        open_places.discard(place)
                        self._consumer.pause([TopicPartition(place.topic, place.partition)])
                yield batch
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            raise ReplayError(f"messages cannot be read: {' '.join(error.str().split())}") from None

    def commit(self, reached: Mapping[Place, int]) -> None:
        """For others to see, now and then and at the end. One that fails is made up for by the next."""
        self._reached |= reached
        if time.monotonic() >= self._commit_at:
            self._commit()
            self._commit_at = time.monotonic() + COMMIT_SECONDS

    def _commit(self) -> None:
        """Not by the consumer, which has no bound for it: without a broker it waits for minutes, and so does its close."""
        if self._reached:
            with suppress(OffsetsError):
                KafkaGroups(self._connection).alter(self._group, self._reached)
                self._reached = {}

    def _take(self, batch: Batch, place: Place, message: Message) -> bool:
        """Account for what the consumer gave; whether the stretch is over."""
        error, offset = message.error(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if offset is None:
            return False
        end = self._stretches[place].end
        if offset - self._next[place] >= GAP_OFFSETS:
            self._notice_gap(batch, place, min(offset, end))
        if error is not None or offset >= end:
            # The end of the stretch, or of what a read_committed reader gets: what was asked for ends there too.
            self._next[place] = batch.reached[place] = end if offset >= end else max(self._next[place], offset)
            return True
        batch.messages.append((place, message))
        self._next[place] = batch.reached[place] = offset + 1
        return offset + 1 >= end

    def _notice_gap(self, batch: Batch, place: Place, upto: int) -> None:
        """What retention has taken between the last message and this one. Markers and aborted messages are not missed."""
        low, _ = self._consumer.get_watermark_offsets(
            TopicPartition(place.topic, place.partition), timeout=QUESTION_SECONDS
        )
        if taken := max(0, min(low, upto) - self._next[place]):
            batch.removed[place] = batch.removed.get(place, 0) + taken
