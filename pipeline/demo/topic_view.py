"""What a read_committed reader finds in the topics."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipeline.demo.errors import DemoError
from pipeline.demo.facts import Quarantined, TopicRecord
from topics.codecs import RecordError, decode_attempt, decode_dispatch
from topics.message_headers import headers_of

METADATA_SECONDS = 10.0
READ_SECONDS = 60.0
BATCH = 1000
POLL_SECONDS = 0.5

T = TypeVar("T")


def read_to_end(kafka: Mapping[str, Any], topic: str, to_record: Callable[[Message], T]) -> list[T]:
    """Every record that is committed now, partition by partition interleaved.

    `kafka` is librdkafka's configuration with addresses and security. Raises DemoError when the end is not reached
    within READ_SECONDS, as behind a transaction that stays open.
    """
    consumer = Consumer(
        {
            **kafka,
            "group.id": "demo-report",  # the client wants one; nothing is committed under it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=METADATA_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        unread = set(partitions)
        records: list[T] = []
        deadline = time.monotonic() + READ_SECONDS
        while unread:
            if time.monotonic() > deadline:
                raise DemoError(
                    f"partitions {sorted(unread)} of {topic} were not read to the end in {READ_SECONDS:g} s"
                )
            for message in consumer.consume(BATCH, timeout=POLL_SECONDS):
                error = message.error()
                if error is None:
                    records.append(to_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
        return records
    finally:
        consumer.close()


def wait_for_records(
    kafka: Mapping[str, Any],
    topic: str,
    to_record: Callable[[Message], TopicRecord],
    wanted: Collection[str],
    seconds: float,
) -> None:
    """Return when all of `wanted` are in the topic, or when `seconds` are over: the report then names the missing."""
    deadline = time.monotonic() + seconds
    missing = set(wanted)
    while missing and time.monotonic() < deadline:
        missing.difference_update(record.record_id for record in read_to_end(kafka, topic, to_record))
        if missing:
            time.sleep(POLL_SECONDS)


def dispatch_of(message: Message) -> TopicRecord:
    """A record of the dispatch topic; its value is the event's body. Raises DemoError for one that is none."""
    dispatch = decode_dispatch(message.key(), message.value(), headers_of(message))
    if isinstance(dispatch, RecordError):
        raise _broken(message, dispatch)
    return TopicRecord(
        record_id=dispatch.message_id,
        delivery_id=dispatch.delivery_id,
        event_id=dispatch.event_id or "",
        body_sha256=hashlib.sha256(dispatch.payload or b"").hexdigest(),
    )


def attempt_of(message: Message) -> TopicRecord:
    """A record of the attempts topic. Raises DemoError for one that is none."""
    attempt = decode_attempt(message.value())
    if isinstance(attempt, RecordError):
        raise _broken(message, attempt)
    return TopicRecord(
        record_id=str(attempt.attempt_id),
        delivery_id=attempt.delivery_id,
        event_id=attempt.event_id,
        body_sha256=attempt.payload_sha256.hex(),
    )


def quarantined_of(message: Message) -> Quarantined:
    """A record of the quarantine topic."""
    headers = {name: value for name, value in headers_of(message) if value is not None}
    return Quarantined(_text(headers.get("delivery_id", b"")), _text(headers.get("quarantine_reason", b"")))


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _broken(message: Message, error: RecordError) -> DemoError:
    return DemoError(f"{message.topic()} partition {message.partition()} offset {message.offset()}: {error}")
