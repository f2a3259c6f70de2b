"""The session's servers are what the program needs."""

from __future__ import annotations

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic


def test_postgres_streams_logical_changes(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE fact (id int PRIMARY KEY)")
        connection.execute("SELECT pg_create_logical_replication_slot('fact_' || current_database(), 'test_decoding')")
        connection.execute("INSERT INTO fact VALUES (7)")
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_changes('fact_' || current_database(), NULL, NULL)"
        ).fetchall()
    assert any("id[integer]:7" in data for (data,) in rows)


def test_kafka_commits_transactions(bootstrap_servers: str, topic_prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topic = f"{topic_prefix}.fact"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic_prefix})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(30)
    assert producer.list_topics(topic, 10).topics[topic].error is None


def test_two_tests_never_share_a_database(database: str, empty_database: str) -> None:
    assert database != empty_database
    with psycopg.connect(database) as connection:
        migrated = connection.execute("SELECT to_regclass('outrider.delivery') IS NOT NULL").fetchone()
    with psycopg.connect(empty_database) as connection:
        empty = connection.execute("SELECT to_regclass('outrider.delivery') IS NOT NULL").fetchone()
    assert (migrated, empty) == ((True,), (False,))


def test_login_roles_have_their_groups_rights_only(role_dsns: dict[str, str]) -> None:
    with psycopg.connect(role_dsns["worker"]) as connection:
        connection.execute("SELECT count(*) FROM outrider.delivery")
        name, superuser = connection.execute(
            "SELECT current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
        ).fetchone() or ("", True)
    assert name.endswith("_worker")
    assert not superuser
