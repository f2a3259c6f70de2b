"""A message as Kafka's client gives it, as a message that the audit reads. Total, whatever the message holds."""

from __future__ import annotations

from dataclasses import replace

from confluent_kafka import Message as KafkaMessage

from pipeline.audit.records import Message
from topics.message_headers import UnreadableHeadersError, headers_of


def message_of(message: KafkaMessage) -> tuple[Message, str | None]:
    """Without headers where they cannot be read, and then with the defect. The client must report no error for it."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise RuntimeError("a message without an error has a place")
    key, value = message.key(), message.value()
    plain = Message(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=key.encode() if isinstance(key, str) else key,
        value=value.encode() if isinstance(value, str) else value,
        headers=(),
    )
    try:
        return replace(plain, headers=tuple(headers_of(message))), None
    except UnreadableHeadersError as error:
        return plain, str(error)
