"""Groups that commit their offsets in transactions: what is about to be committed is waited for, and not overtaken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer, TopicPartition

from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place
from tests.support.offsets_world import OffsetsWorld
from topics.security import KafkaConnection


@pytest.fixture
def world(bootstrap_servers: str, topic_prefix: str) -> OffsetsWorld:
    world = OffsetsWorld(bootstrap_servers, topic_prefix)
    world.create_topic()
    world.produce(5)
    return world


@contextmanager
def pending_commit(world: OffsetsWorld, bootstrap_servers: str, offset: int) -> Iterator[Callable[[], None]]:
    """A consumer read up to `offset` in a transaction that is still open; gives what commits it."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": f"{world.prefix}.reads", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    with world.member() as consumer:
        place = TopicPartition(world.topic, 0, offset)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 30)
    yield lambda: producer.commit_transaction(30)


@pytest.mark.parametrize("before", [[1], []], ids=["after an earlier commit", "as the first commit"])
def test_reading_waits_for_a_transaction_that_is_about_to_commit(
    world: OffsetsWorld, bootstrap_servers: str, before: list[int]
) -> None:
    """Else a plan would take an offset for "before" that the end of the transaction replaces."""
    if before:
        world.commit(*before)
    groups = KafkaGroups(KafkaConnection(bootstrap_servers=bootstrap_servers))
    place = Place(world.topic, 0)
    found: list[dict[Place, int]] = []
    with pending_commit(world, bootstrap_servers, 4) as commit:
        asking = threading.Thread(target=lambda: found.append(groups.committed(world.group, [place])))
        asking.start()
        asking.join(1)
        assert asking.is_alive()
        commit()
        asking.join(30)
    assert found == [{place: 4}]
