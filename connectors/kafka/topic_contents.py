"""What a topic holds, and what it may have dropped: its extent, and its committed records to its present end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not declared so
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from connectors.errors import KafkaUnavailableError
from connectors.kafka.client import ADMIN_TIMEOUT_SECONDS, ClientErrors, TopicQuestions, kafka_error

# A topic that gives nothing more for so long, short of its end, hangs behind a transaction that nobody ends.
PROGRESS_SECONDS: Final = 60.0
BATCH_RECORDS: Final = 1_000
POLL_SECONDS: Final = 0.5
QUEUED_KIB: Final = 4 * 1024
FETCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """``starts`` and ``ends`` are offsets by partition: of the first record that is left, and past the last one, those
    of open transactions included. ``retention_ms`` is None where age alone drops nothing.
    """

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    retention_ms: int | None
    drops_by_size: bool
    is_compacted: bool

    @property
    def is_untouched(self) -> bool:
        """Nothing was ever written, or tried."""
        return not any(self.ends.values())

    @property
    def has_dropped(self) -> bool:
        """Records that were there are not any more."""
        return any(self.starts.values())


def topic_extents(
    kafka: Mapping[str, Any], topics: Iterable[str], while_waiting: Callable[[], None]
) -> dict[str, TopicExtent]:
    """Raises MissingTopicError for one that does not exist, TransientError where Kafka does not answer,
    ConfigurationError where it refuses to.
    """
    questions = TopicQuestions(kafka, while_waiting)
    names = sorted(set(topics))

    resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in names}
    described = questions.admin.describe_configs(list(resources.values()), request_timeout=ADMIN_TIMEOUT_SECONDS)
    configs = {topic: questions.answer(described[resource], topic, "describe") for topic, resource in resources.items()}
    try:
        metadata = questions.admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS).topics
    except KafkaException as exception:
        raise questions.errors.explain("list topics", kafka_error(exception)) from None
    partitions = {topic: sorted(metadata[topic].partitions) for topic in names if topic in metadata}
    for topic in names:
        # A broker that lags behind must not make a topic look as if nothing had ever been written to it.
        if not partitions.get(topic):
            raise KafkaUnavailableError(f"Kafka told no partitions of topic {topic}")

    def offsets(spec: OffsetSpec) -> dict[str, dict[int, int]]:
        asked = {TopicPartition(topic, number): spec for topic in names for number in partitions[topic]}
        futures = questions.admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ADMIN_TIMEOUT_SECONDS
        )
        found: dict[str, dict[int, int]] = {topic: {} for topic in names}
        for partition, future in futures.items():
            answer = questions.answer(future, partition.topic, "tell the ends of")
            found[partition.topic][partition.partition] = int(answer.offset)
        return found

    starts = offsets(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = offsets(OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {topic: _extent(topic, starts[topic], ends[topic], configs[topic]) for topic in names}


def _extent(topic: str, starts: Mapping[int, int], ends: Mapping[int, int], config: Mapping[str, Any]) -> TopicExtent:
    policies = config["cleanup.policy"].value.split(",")
    deletes = "delete" in policies
    retention_ms = int(config["retention.ms"].value)
    return TopicExtent(
        topic=topic,
        starts=starts,
        ends=ends,
        retention_ms=retention_ms if deletes and retention_ms >= 0 else None,
        drops_by_size=deletes and int(config["retention.bytes"].value) >= 0,
        is_compacted="compact" in policies,
    )


def read_records(
    kafka: Mapping[str, Any], extent: TopicExtent, since_ms: int | None, while_waiting: Callable[[], None]
) -> Iterator[list[Message]]:
    """Every committed record up to the ends that ``extent`` names, in batches; with ``since_ms`` at least those of
    that time and later. Memory stays bounded whatever the topic holds.

    Where transactions are open before the end, theirs is waited for. Raises TransientError where nothing more comes.
    """
    errors = ClientErrors()
    consumer = Consumer(
        errors.configure_reader(
            kafka,
            extent.topic,
            **{
                # What is fetched ahead is bounded by number too: compressed records are many in few bytes.
                "queued.min.messages": BATCH_RECORDS,
                "queued.max.messages.kbytes": QUEUED_KIB,
                "fetch.max.bytes": FETCH_BYTES,
                "fetch.message.max.bytes": FETCH_BYTES // 4,
            },
        )
    )
    try:
        yield from _read(consumer, errors, extent, since_ms, while_waiting)
    except KafkaException as exception:
        raise errors.explain(f"give topic {extent.topic}", kafka_error(exception)) from None
    finally:
        consumer.close()


def _read(
    consumer: Consumer,
    errors: ClientErrors,
    extent: TopicExtent,
    since_ms: int | None,
    while_waiting: Callable[[], None],
) -> Iterator[list[Message]]:
    open_partitions = {number for number, end in extent.ends.items() if end > extent.starts[number]}
    if not open_partitions:
        return
    starts = [TopicPartition(extent.topic, number, extent.starts[number]) for number in open_partitions]
    if since_ms is not None:
        asked = [TopicPartition(extent.topic, number, since_ms) for number in open_partitions]
        starts = consumer.offsets_for_times(asked, timeout=ADMIN_TIMEOUT_SECONDS)
    consumer.assign(starts)
    deadline = time.monotonic() + PROGRESS_SECONDS
    while open_partitions:
        messages = consumer.consume(BATCH_RECORDS, POLL_SECONDS)
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # read_committed ends where the first open transaction begins, so not each such end is the end.
                if (message.offset() or 0) >= extent.ends[message.partition() or 0]:
                    open_partitions.discard(message.partition() or 0)
            elif not error.retriable():
                raise errors.explain(f"give topic {extent.topic}", error)
        if records:
            deadline = time.monotonic() + PROGRESS_SECONDS
            yield records
        elif time.monotonic() >= deadline:
            raise KafkaUnavailableError(f"topic {extent.topic} could not be read to its end (does a transaction hang?)")
        while_waiting()
