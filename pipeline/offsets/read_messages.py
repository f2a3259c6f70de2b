"""Messages of stretches of partitions, read as a read_committed consumer sees them. In no group, and with commits of none.

This is the only way to tell messages from transaction markers, aborted records and compacted gaps: offsets do not say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.places import MessageCount, Place, Stretch
from topics.security import KafkaConnection

BATCH = 1_000
POLL_SECONDS = 0.2
PROGRESS_SECONDS = 1.0
SILENCE_SECONDS = 120.0
"""Brokers that are restarted one after the other, or elect leaders, take less."""
# Bounds of what the client holds before it is handed out. Small messages take several times their bytes there.
QUEUED_KIB = 16 * 1024
QUEUED_MESSAGES = 10_000
FETCH_BYTES = 8 * 1024 * 1024


class Listening:
    """Asks a consumer for what it has, through a restart of the brokers, but not for ever: after ``SILENCE_SECONDS`` of
    nothing it gives up. Time that the caller takes between does not count."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._silent_seconds = 0.0
        self._last_error: KafkaError | None = None

    def consume(self, messages_max: int) -> list[tuple[Place, Message]]:
        """What there is within POLL_SECONDS, with ends of partitions. Raises OffsetsError, or KafkaException where the client
        can do no more."""
        began = time.monotonic()
        found = []
        for message in self._consumer.consume(messages_max, POLL_SECONDS):
            place = place_of(message)
            if place is None:
                self._last_error = message.error()
            else:
                found.append((place, message))
        self._silent_seconds = 0.0 if found else self._silent_seconds + time.monotonic() - began
        if self._silent_seconds > SILENCE_SECONDS:
            said = "" if self._last_error is None else f": {' '.join(self._last_error.str().split())}"
            raise OffsetsError(f"Kafka has given no message for {SILENCE_SECONDS:g} s, and there are some left{said}")
        return found


@dataclass(slots=True)
class Reading:
    """How far a stretch was read, and what was there."""

    stretch: Stretch
    messages: int = 0
    reached: int = 0
    """Offsets below this are accounted for."""
    first_timestamp_ms: int | None = None
    is_over: bool = False

    @property
    def count(self) -> MessageCount:
        return MessageCount(self.messages, self.messages + max(0, self.stretch.end - self.reached))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Where reading ends before all is read; the counts then say between which numbers the truth lies."""

    seconds: float
    messages_per_partition: int | None = None


Progress = Callable[[int, int], None]
"""Told now and then: offsets accounted for, of how many."""


def read_messages(
    connection: KafkaConnection,
    stretches: Mapping[Place, Stretch],
    limits: ReadLimits,
    *,
    on_message: Callable[[Place, Message], None] = lambda place, message: None,
    progress: Progress = lambda done, total: None,
) -> dict[Place, Reading]:
    """Read every stretch to its end or to a limit. Memory does not grow with them. Raises OffsetsError."""
    readings = {
        place: Reading(stretch, reached=stretch.start, is_over=stretch.span == 0)
        for place, stretch in stretches.items()
    }
    starts = [
        TopicPartition(place.topic, place.partition, reading.stretch.start)
        for place, reading in readings.items()
        if not reading.is_over
    ]
    if not starts:
        return readings
    consumer = Consumer(
        reader_configuration(
            connection,
            "outrider-offsets-reader",  # the client wants one; nothing is joined or committed
            queued_max_messages_kbytes=QUEUED_KIB,
            queued_min_messages=QUEUED_MESSAGES,
            fetch_max_bytes=FETCH_BYTES,
        )
    )
    try:
        consumer.assign(starts)
        _read(consumer, readings, limits, on_message, progress)
    except KafkaException as exception:
        error: KafkaError = exception.args[0]
        raise OffsetsError(f"messages cannot be read: {' '.join(error.str().split())}") from None
    finally:
        consumer.close()
    return readings


def _read(
    consumer: Consumer,
    readings: Mapping[Place, Reading],
    limits: ReadLimits,
    on_message: Callable[[Place, Message], None],
    progress: Progress,
) -> None:
    total = sum(reading.stretch.span for reading in readings.values())
    open_places = {place for place, reading in readings.items() if not reading.is_over}
    deadline = time.monotonic() + limits.seconds
    next_progress = time.monotonic() + PROGRESS_SECONDS
    listening = Listening(consumer)
    while open_places and time.monotonic() < deadline:
        for place, message in listening.consume(BATCH):
            if place not in open_places:
                continue
            reading = readings[place]
            if _take(reading, message, limits.messages_per_partition):
                on_message(place, message)
            if reading.is_over:
                open_places.discard(place)
                consumer.pause([TopicPartition(place.topic, place.partition)])
        if time.monotonic() >= next_progress:
            next_progress = time.monotonic() + PROGRESS_SECONDS
            progress(sum(min(r.reached, r.stretch.end) - r.stretch.start for r in readings.values()), total)


def _take(reading: Reading, message: Message, messages_max: int | None) -> bool:
    """Account for what the consumer gave; whether it is a message of the stretch. Raises KafkaException."""
    error, offset = message.error(), message.offset()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if offset is None:
        return False
    if error is not None or offset >= reading.stretch.end:
        # The end of what a read_committed reader gets, or a message behind the stretch: all before is accounted for.
        reading.reached = max(reading.reached, offset)
        reading.is_over = True
        return False
    reading.messages += 1
    reading.reached = offset + 1
    if reading.first_timestamp_ms is None:
        reading.first_timestamp_ms = message.timestamp()[1]
    reading.is_over = reading.reached >= reading.stretch.end or reading.messages == messages_max
    return True


def place_of(message: Message) -> Place | None:
    """Raises KafkaException where the client can do no more."""
    topic, partition = message.topic(), message.partition()
    if topic is None or partition is None:
        error = message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)
        return None  # of the client as a whole, such as a broker that went away: it connects again
    return Place(topic, partition)


def reader_configuration(connection: KafkaConnection, group: str, **bounds: int) -> dict[str, Any]:
    """Of a consumer that is told what to read, as a read_committed reader; ``bounds`` of what it holds ahead, with
    underscores for the dots of their names."""
    return {
        **connection.librdkafka(),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        # Retention may take the start of a stretch while we read: what is left still counts.
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 5,  # else a client whose room is full asks again only a second later
        "log_level": 0,
        **{name.replace("_", "."): bound for name, bound in bounds.items()},
    }
