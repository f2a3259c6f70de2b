"""Servers come back after a kill with their data, at the same address."""

from __future__ import annotations

import psycopg
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pipeline.stack.embedded import EmbeddedStack


def test_postgres_keeps_commits_over_a_kill(embedded_stack: EmbeddedStack, empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE TABLE fact (id int)")
    address = embedded_stack.postgres_dsn
    embedded_stack.postgres.kill()
    embedded_stack.postgres.start()
    assert embedded_stack.postgres_dsn == address
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT count(*) FROM fact").fetchone() == (0,)


def test_kafka_keeps_records_over_a_kill(embedded_stack: EmbeddedStack, topic_prefix: str) -> None:
    bootstrap_servers = embedded_stack.bootstrap_servers
    topic = f"{topic_prefix}.fact"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    producer.produce(topic, b"kept")
    assert producer.flush(30) == 0

    embedded_stack.kafka.kill()
    embedded_stack.kafka.start()
    assert embedded_stack.bootstrap_servers == bootstrap_servers
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic_prefix, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert message.value() == b"kept"
