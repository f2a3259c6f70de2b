"""Topics with awkward contents, and real consumer groups on them, for tests of offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.offsets.places import Place

DEADLINE_SECONDS = 60.0


class OffsetsWorld:
    """Topics and groups under one prefix."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.prefix = prefix
        self.topic = f"{prefix}.facts"
        self.group = f"{prefix}.analytics"
        self._kafka = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self.admin = AdminClient(dict(self._kafka))
        self._producer = Producer({**self._kafka, "linger.ms": 0})
        self._transactional: Producer | None = None

    def create_topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or self.topic
        new = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        self.admin.create_topics([new])[name].result(30)
        # The coordinator of a group learns of a topic a moment later.
        wait_until(lambda: self._try_commit(f"{self.prefix}.probe", {Place(name, 0): 0}), f"{name} can be committed")
        return name

    def produce(self, count: int, partition: int = 0, *, at_ms: int | None = None, topic: str | None = None) -> None:
        """Records outside any transaction; `at_ms` is the timestamp of the first, each next one is a second newer."""
        for number in range(count):
            more: dict[str, Any] = {} if at_ms is None else {"timestamp": at_ms + 1000 * number}
            self._producer.produce(topic or self.topic, str(number), partition=partition, **more)
        assert self._producer.flush(30) == 0

    def transact(self, count: int, partition: int = 0, *, end: str = "commit") -> None:
        """Records in one transaction, which leaves a marker behind. `end`: commit, abort, or open."""
        if self._transactional is None:
            self._transactional = Producer({**self._kafka, "transactional.id": f"{self.prefix}.offsets"})
            self._transactional.init_transactions(30)
        self._transactional.begin_transaction()
        for number in range(count):
            self._transactional.produce(self.topic, str(number), partition=partition)
        assert self._transactional.flush(30) == 0
        if end == "commit":
            self._transactional.commit_transaction(30)
        elif end == "abort":
            self._transactional.abort_transaction(30)

    def end_open_transaction(self) -> None:
        assert self._transactional is not None
        self._transactional.abort_transaction(30)

    def commit(self, *offsets: int, group: str | None = None, topic: str | None = None) -> None:
        """Commit one offset for each partition from 0 on, as a group that is not at work."""
        name = group or self.group
        wanted = {Place(topic or self.topic, number): offset for number, offset in enumerate(offsets)}
        assert self._try_commit(name, wanted)

    def _try_commit(self, group: str, offsets: dict[Place, int]) -> bool:
        partitions = [TopicPartition(place.topic, place.partition, offset) for place, offset in offsets.items()]
        answer = self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)])[group]
        try:
            return all(tp.error is None for tp in answer.result(30).topic_partitions)
        except TimeoutError:  # a busy machine; the caller asks again
            return False

    def committed(self, group: str | None = None) -> dict[tuple[str, int], int]:
        name = group or self.group
        found = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(30)
        return {(tp.topic, tp.partition): tp.offset for tp in found.topic_partitions}

    def state(self, group: str | None = None) -> str:
        name = group or self.group
        return str(self.admin.describe_consumer_groups([name])[name].result(30).state.name)

    def consumer(self, group: str | None = None, **settings: Any) -> Consumer:
        return Consumer(
            {
                **self._kafka,
                "group.id": group or self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )

    @contextmanager
    def member(self, group: str | None = None, **settings: Any) -> Iterator[Consumer]:
        """A subscribed consumer that has joined; it leaves at the end."""
        consumer = self.consumer(group, **settings)
        try:
            consumer.subscribe([self.topic])
            join(consumer)
            yield consumer
        finally:
            consumer.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until it holds; fail with ``what`` after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what}"
        time.sleep(0.05)


def join(consumer: Consumer) -> None:
    """Poll until the consumer has partitions. What it fetches meanwhile is read again from where it stood."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not consumer.assignment():
        assert time.monotonic() < deadline, "the consumer did not join"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            consumer.seek(TopicPartition(message.topic() or "", message.partition() or 0, message.offset() or 0))


def read(consumer: Consumer, count: int) -> list[Any]:
    """The next `count` messages."""
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages came"
        found += [message for message in consumer.consume(count - len(found), 0.2) if message.error() is None]
    return found


def offsets_of(messages: Sequence[Any]) -> list[int]:
    return [message.offset() for message in messages]
