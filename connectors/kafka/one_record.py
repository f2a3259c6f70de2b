"""One record, on its own, outside any connector's transactions: an operator's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.kafka.client import ClientErrors, kafka_error
from connectors.router import Record

SEND_SECONDS: Final = 15.0


def send_record(kafka: Mapping[str, Any], record: Record) -> None:
    """The record is in its topic, on as many replicas as that asks for, when this returns.

    Raises TransientError or ConfigurationError where Kafka has not taken it.
    """
    errors = ClientErrors()
    producer = Producer(
        errors.configure(
            kafka,
            **{
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(SEND_SECONDS * 1000),
                "linger.ms": 0,
                "partitioner": "murmur2_random",
            },
        )
    )
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    what = f"take a record of topic {record.topic}"
    try:
        producer.produce(record.topic, record.value, record.key, headers=record.headers, on_delivery=on_delivery)
        unsent = producer.flush(SEND_SECONDS + 1)
    except KafkaException as exception:
        raise errors.explain(what, kafka_error(exception)) from None
    if failures or unsent:
        raise errors.explain(what, failures[0] if failures else None)
