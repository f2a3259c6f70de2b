"""The audit group on a real broker: each committed message once, whatever is killed or read again."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pipeline.stack.child_process import ChildProcess
from tests.fixtures.components import StartComponent
from tests.support.damaged_records import NotText, batch, produce_batch
from tests.support.ledger_rows import connect, scalar, wait_until
from tests.unit.test_audit_records import ATTEMPT

PARTITIONS = 4
KAFKA_SECONDS = 30.0


@pytest.fixture
def auditor_dsn(database: str) -> Iterator[str]:
    """A login with no more than the auditor's rights."""
    role, password = f"outrider_test_auditor_{secrets.token_hex(4)}", secrets.token_hex(16)
    with connect(database) as admin:
        admin.execute(
            sql.SQL("create role {} login password {} in role outrider_auditor").format(
                sql.Identifier(role), sql.Literal(password)
            )
        )
        yield make_conninfo(database, user=role, password=password)
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        yield connection


@pytest.fixture
def topics(bootstrap_servers: str, topic_prefix: str) -> tuple[str, str]:
    """Names of the dispatch and the attempts topic, which exist."""
    names = (f"{topic_prefix}.dispatch", f"{topic_prefix}.attempts")
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    created = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    for future in created.values():
        future.result(KAFKA_SECONDS)
    return names


@pytest.fixture
def producer(bootstrap_servers: str) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5})
    yield producer
    assert producer.flush(KAFKA_SECONDS) == 0


def produce_dispatches(producer: Producer, topic: str, first: int, count: int) -> None:
    for n in range(first, first + count):
        headers = {"id": f"m{n}", "delivery_id": f"dlv_{n}", "dispatch_seq": "1"}
        producer.produce(topic, key=f"acme{n % 7}", value=f"body {n}", headers=list(headers.items()))
        producer.poll(0)


def recorded(connection: psycopg.Connection) -> int:
    return int(scalar(connection, "select count(*) from outrider_audit.record"))


def wait_for_records(connection: psycopg.Connection, count: int) -> None:
    wait_until(lambda: recorded(connection) >= count, f"{count} records", 60)
    assert recorded(connection) == count


def committed(bootstrap_servers: str, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    try:
        places = consumer.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], timeout=KAFKA_SECONDS)
        return {place.partition: max(place.offset, 0) for place in places}
    finally:
        consumer.close()


def check_only_recorded_is_committed(
    connection: psycopg.Connection, bootstrap_servers: str, group: str, topic: str
) -> None:
    """Every message below a committed offset is in the table."""
    for partition, offset in committed(bootstrap_servers, group, topic).items():
        below = scalar(
            connection,
            "select count(*) from outrider_audit.record where topic = %s and partition = %s and log_offset < %s",
            topic,
            partition,
            offset,
        )
        assert below == offset


def test_both_topics_are_recorded(
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    dispatch, attempts = topics
    produce_dispatches(producer, dispatch, 1, 1)
    producer.produce(attempts, key="acme", value=json.dumps(ATTEMPT))
    producer.flush(KAFKA_SECONDS)
    component("audit", postgres_dsn=auditor_dsn)
    wait_for_records(connection, 2)
    rows = connection.execute(
        "select topic, delivery_id, destination_id, dispatch_seq, attempt, result, body_sha256, defect "
        "from outrider_audit.record order by topic desc"
    ).fetchall()
    assert rows == [
        (dispatch, "dlv_1", "acme1", 1, None, None, hashlib.sha256(b"body 1").digest(), None),
        (attempts, "dlv_1", "acme", 3, 2, "retry", b"\x01" * 32, None),
    ]


def test_broken_messages_are_recorded_and_hold_up_nothing(
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    dispatch, attempts = topics
    broken: list[tuple[str, Any]] = [
        (dispatch, {"value": b"no headers", "key": b"k"}),
        (dispatch, {"value": None, "key": None}),
        (
            dispatch,
            {"value": b"", "key": b"k", "headers": [("id", b"\xff"), ("delivery_id", b"\0"), ("dispatch_seq", None)]},
        ),
        (attempts, {"value": b"not JSON", "key": b"acme"}),
        (attempts, {"value": None, "key": b"acme"}),
        (attempts, {"value": json.dumps({**ATTEMPT, "delivery_id": "nul\0"}), "key": b"acme"}),
        (attempts, {"value": json.dumps({**ATTEMPT, "attempt": 2**40}), "key": b"acme"}),
        (attempts, {"value": json.dumps({**ATTEMPT, "delivery_id": "x" * 100_000}), "key": b"acme"}),
    ]
    for topic, record in broken:
        producer.produce(topic, partition=0, **record)
    producer.produce(attempts, partition=0, key="acme", value=json.dumps(ATTEMPT))
    producer.flush(KAFKA_SECONDS)
    component("audit", postgres_dsn=auditor_dsn)
    wait_for_records(connection, len(broken) + 1)
    assert scalar(connection, "select count(*) from outrider_audit.record where defect is not null") == len(broken)
    assert scalar(connection, "select delivery_id from outrider_audit.record where defect is null") == "dlv_1"


def test_what_was_never_committed_to_kafka_is_not_recorded(
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    bootstrap_servers: str,
    topics: tuple[str, str],
) -> None:
    dispatch, _ = topics
    writer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"{dispatch}.test"})
    writer.init_transactions(KAFKA_SECONDS)
    for first, is_kept in ((0, False), (100, True), (200, False), (300, True)):
        writer.begin_transaction()
        produce_dispatches(writer, dispatch, first, 10)
        writer.flush(KAFKA_SECONDS)
        if is_kept:
            writer.commit_transaction(KAFKA_SECONDS)
        else:
            writer.abort_transaction(KAFKA_SECONDS)
    component("audit", postgres_dsn=auditor_dsn)
    wait_for_records(connection, 20)
    ids = connection.execute("select delivery_id from outrider_audit.record").fetchall()
    assert {name for (name,) in ids} == {f"dlv_{n}" for n in (*range(100, 110), *range(300, 310))}


def test_reading_again_from_the_beginning_changes_nothing(
    *,
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    bootstrap_servers: str,
    topic_prefix: str,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    dispatch, _ = topics
    produce_dispatches(producer, dispatch, 0, 300)
    producer.flush(KAFKA_SECONDS)
    first = component("audit", postgres_dsn=auditor_dsn)
    wait_for_records(connection, 300)
    assert first.terminate(KAFKA_SECONDS) == 0
    group = f"{topic_prefix}.audit"
    assert sum(committed(bootstrap_servers, group, dispatch).values()) == 300
    before = connection.execute("select * from outrider_audit.record order by topic, partition, log_offset").fetchall()

    rewind(bootstrap_servers, group, dispatch)
    produce_dispatches(producer, dispatch, 300, 1)
    producer.flush(KAFKA_SECONDS)
    component("audit", postgres_dsn=auditor_dsn)

    wait_until(lambda: sum(committed(bootstrap_servers, group, dispatch).values()) == 301, "all is read again", 60)
    after = connection.execute(
        "select * from outrider_audit.record where delivery_id <> 'dlv_300' order by topic, partition, log_offset"
    ).fetchall()
    assert after == before
    assert recorded(connection) == 301


def rewind(bootstrap_servers: str, group: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, n, 0) for n in range(PARTITIONS)], asynchronous=False)
    finally:
        consumer.close()


def test_killed_again_and_again_it_loses_nothing(
    *,
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    bootstrap_servers: str,
    topic_prefix: str,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    dispatch, _ = topics
    process: ChildProcess | None = None
    total, step = 0, 2_000
    for _ in range(2):
        produce_dispatches(producer, dispatch, total, step)
        total += step
        producer.flush(KAFKA_SECONDS)
        process = component("audit", postgres_dsn=auditor_dsn)
        seen = recorded(connection)
        wait_until(lambda seen=seen: recorded(connection) > seen, "it records", 60)
        process.kill()
        check_only_recorded_is_committed(connection, bootstrap_servers, f"{topic_prefix}.audit", dispatch)
    component("audit", postgres_dsn=auditor_dsn)
    wait_for_records(connection, total)
    assert scalar(connection, "select count(distinct delivery_id) from outrider_audit.record") == total


def test_members_come_and_go_and_each_message_is_recorded(
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    dispatch, _ = topics
    total = 0

    def produce_more() -> None:
        nonlocal total
        produce_dispatches(producer, dispatch, total, 500)
        total += 500
        producer.flush(KAFKA_SECONDS)

    first = component("audit", postgres_dsn=auditor_dsn)
    produce_more()
    wait_for_records(connection, total)
    component("audit", postgres_dsn=auditor_dsn)
    produce_more()
    wait_for_records(connection, total)
    assert first.terminate(KAFKA_SECONDS) == 0
    produce_more()
    wait_for_records(connection, total)


def test_lost_database_sessions_are_opened_again(
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    dispatch, _ = topics
    process = component("audit", postgres_dsn=auditor_dsn)
    produce_dispatches(producer, dispatch, 0, 10)
    wait_for_records(connection, 10)
    connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name = 'outrider audit'"
    )
    produce_dispatches(producer, dispatch, 10, 10)
    wait_for_records(connection, 20)
    assert process.is_running


def test_a_missing_topic_is_one_line(component: StartComponent, auditor_dsn: str, topic_prefix: str) -> None:
    process = component("audit", postgres_dsn=auditor_dsn)
    wait_until(lambda: not process.is_running, "it ends", 60)
    assert process.exit_status == 1
    assert f"{topic_prefix}.dispatch does not exist in Kafka: run outrider topics apply" in process.log_tail(5)
    assert "Traceback" not in process.log_tail(50)


def test_a_login_without_the_right_is_one_line(
    component: StartComponent, role_dsns: dict[str, str], topics: tuple[str, str], producer: Producer
) -> None:
    produce_dispatches(producer, topics[0], 0, 1)
    producer.flush(KAFKA_SECONDS)
    process = component("audit", postgres_dsn=role_dsns["application"])
    wait_until(lambda: not process.is_running, "it ends", 60)
    assert process.exit_status == 1
    assert "permission denied" in process.log_tail(5)
    assert "Traceback" not in process.log_tail(50)


def test_a_record_whose_headers_cannot_be_read_is_recorded_with_its_defect(
    *,
    component: StartComponent,
    auditor_dsn: str,
    connection: psycopg.Connection,
    bootstrap_servers: str,
    topics: tuple[str, str],
    producer: Producer,
) -> None:
    bad = (b"acme", json.dumps(ATTEMPT).encode(), [(NotText("x"), b"y")])
    for topic in topics:
        produce_batch(bootstrap_servers, topic, 0, batch(bad, bad))
    produce_dispatches(producer, topics[0], 0, 1)
    producer.flush(KAFKA_SECONDS)
    process = component("audit", postgres_dsn=auditor_dsn)
    wait_for_records(connection, 5)
    assert process.is_running
    defects = connection.execute("select topic, defect from outrider_audit.record where defect is not null").fetchall()
    assert sorted(topic for topic, _ in defects) == sorted(topics * 2)
    assert all(defect.startswith("headers: cannot be read") for _, defect in defects)
