"""``python -m connectors`` on the shipped example, for a table that knows nothing of this project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not declared so
from psycopg.conninfo import make_conninfo

from connectors.postgres.lsn import parse_lsn
from pipeline.stack.child_process import ChildProcess, Command
from pipeline.stack.guard import Guard
from tests.support.connector_world import Read, read_committed, wait_until
from tests.support.debezium_world import contents

TABLE = """
create table public.outbox (
  id bigint generated always as identity primary key, created_at timestamptz not null default now(),
  kind text not null, owner text not null, body jsonb, trace text);
alter table public.outbox replica identity full;
create publication shop for table public.outbox with (publish = 'insert, update, delete');
"""
MOMENT_MS = 1_700_000_000_123


@pytest.fixture
def example(bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Path:
    """The example with names of this test, and the topics that it asks for."""
    text = files("connectors").joinpath("examples", "shop.toml").read_text()
    text = text.replace('"shop.', f'"{topic_prefix}.').replace('slot = "shop"', f'slot = "{slot_name(topic_prefix)}"')
    config = tmp_path / "shop.toml"
    config.write_text(text)
    policies = {
        "order": "delete",
        "invoice": "delete",
        "quarantine": "delete",
        "positions": "compact",
        "control": "compact",
    }
    topics = [
        # The rows' moments are years old: what Kafka may drop by age, it would drop at its next look.
        NewTopic(f"{topic_prefix}.{name}", 1, 1, config={"cleanup.policy": policy, "retention.ms": "-1"})
        for name, policy in policies.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics(topics).values():
        created.result(30)
    return config


@pytest.fixture
def program(
    empty_database: str, bootstrap_servers: str, login_roles: dict[str, tuple[str, str]], guard: Guard, example: Path
) -> Iterator[ChildProcess]:
    """It runs under a role that may replicate and read the table, and no more."""
    role, password = login_roles["connector"]
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(f"grant select on public.outbox to {role}")
    variables = {
        "SHOP_POSTGRES": make_conninfo(empty_database, user=role, password=password),
        "SHOP_KAFKA": bootstrap_servers,
    }
    command = Command(
        arguments=[sys.executable, "-P", "-m", "connectors", str(example)],
        environment={**os.environ, **variables},
        directory=example.parent,
        log=example.with_name("connector.log"),
    )
    process = ChildProcess("connector", command, on_start=guard.end)
    yield process
    process.terminate(30)


def slot_name(topic_prefix: str) -> str:
    return topic_prefix.replace("-", "_")


def timestamps(bootstrap_servers: str, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "r", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.timestamp()[1] for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def test_the_example_publishes_routes_refuses_and_buries(
    program: ChildProcess, empty_database: str, bootstrap_servers: str, topic_prefix: str
) -> None:
    insert = (
        "insert into public.outbox (created_at, kind, owner, body, trace) values (to_timestamp(%s), %s, %s, %s, %s)"
    )
    with psycopg.connect(empty_database, autocommit=True) as connection:

        def add(kind: str, owner: str, body: str | None, trace: str | None = None, seconds: float = MOMENT_MS / 1000):
            connection.execute(insert, [seconds, kind, owner, body, trace])

        add("order", "größe", '{"a": 1.10}', "00-before")
        program.start()
        wait_until(
            lambda: bool(read(bootstrap_servers, topic_prefix, "order")) or not program.is_running, program.log_tail
        )
        add("invoice", "größe", "null")
        add("refund", "acme", "{}")
        add("order", "acme", None)
        add("order", "acme", '"far ahead"', seconds=4e9)
        connection.execute("update public.outbox set owner = 'x' where id = 2")
        connection.execute("delete from public.outbox where id = 1")
        add("order", "acme", '"last"')
        orders = contents(bootstrap_servers, f"{topic_prefix}.order", 4)[0]
        assert orders == [
            ("größe".encode(), b'{"a": 1.10}', [("id", b"1"), ("traceparent", b"00-before")]),
            (b"acme", None, [("id", b"4")]),
            ("größe".encode(), None, [("id", b"1"), ("traceparent", b"00-before")]),
            (b"acme", b'"last"', [("id", b"6")]),
        ]
        assert contents(bootstrap_servers, f"{topic_prefix}.invoice", 1)[0] == [
            ("größe".encode(), b"null", [("id", b"2")])
        ]
        assert timestamps(bootstrap_servers, f"{topic_prefix}.order", 4) == [MOMENT_MS] * 4
        refused = [
            record.headers["quarantine_reason"].decode()
            for record in read(bootstrap_servers, topic_prefix, "quarantine")
        ]
        assert refused == [
            "column 'kind' is 'refund', which gives none of the route's topics",
            "timestamp column 'created_at' is further ahead than Kafka takes",
            "updates of table public.outbox are refused",
        ]
        assert program.terminate(30) == 0
        (row,) = connection.execute(
            "select confirmed_flush_lsn::text, active from pg_replication_slots where slot_name = %s",
            [slot_name(topic_prefix)],
        )
        assert not row[1]
        assert parse_lsn(row[0]) > 0


def read(bootstrap_servers: str, topic_prefix: str, part: str) -> list[Read]:
    return read_committed(bootstrap_servers, f"{topic_prefix}.{part}")


def test_a_start_that_cannot_succeed_says_why_and_ends(
    program: ChildProcess, empty_database: str, bootstrap_servers: str
) -> None:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("alter table public.outbox rename column body to content")
    program.start()
    assert program.wait(60) == 1
    assert "has no column 'body'" in program.log_tail(1)


def test_a_policy_for_changes_that_are_not_published_is_refused(program: ChildProcess, empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("alter publication shop set (publish = 'insert, update')")
    program.start()
    assert program.wait(60) == 1
    assert "a route publishes or refuses deletes, but publication shop leaves them out" in program.log_tail(1)
