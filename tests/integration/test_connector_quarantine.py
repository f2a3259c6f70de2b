"""Rows in quarantine: what of their key passes or waits, and how they go on when an operator lets them."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from confluent_kafka import Producer

from connectors.errors import ConfigurationError
from connectors.router import Route
from tests.support.connector_world import (
    ConnectorWorld,
    assert_exactly_once_in_order,
    insert_dispatches,
    wait_until,
    world_of,
)
from tests.support.program import Outrider
from topics.admin import TopicAdmin
from topics.declarations import declare_topics
from topics.difference import differences

SMALL = 20_000
LARGE = 60_000


@pytest.fixture
def world(settings_values: dict[str, object], role_dsns: dict[str, str]) -> ConnectorWorld:
    """Its connectors log in as the role that the documentation gives them; its dispatch topic takes small records."""
    world = world_of(settings_values, postgres_dsn=role_dsns["connector"])
    world.create_topics()
    set_dispatch_limit(world, SMALL)
    return world


def set_dispatch_limit(world: ConnectorWorld, limit: int) -> None:
    """``max.message.bytes`` of the dispatch topic, as an operator would set it."""
    name = world.settings.name("dispatch")
    declared = [
        replace(topic, config={**topic.config, "max.message.bytes": str(limit)}) if topic.name == name else topic
        for topic in declare_topics(
            prefix=world.settings.topic_prefix,
            dispatch_partitions=4,
            attempts_partitions=4,
            replication_factor=1,
            min_insync_replicas=1,
        )
    ]
    admin = TopicAdmin(world.settings.kafka)
    admin.apply(declared, differences(declared, admin.describe([topic.name for topic in declared])))


def with_policy(world: ConnectorWorld, policy: str) -> tuple[Route, ...]:
    return tuple(replace(route, later_rows_of_key=policy) for route in world.config.routes)  # type: ignore[arg-type]


def insert(connection: psycopg.Connection, tag: str, payload_bytes: int = 100, destinations: int = 1) -> None:
    insert_dispatches(connection, destinations, destinations=destinations, payload_bytes=payload_bytes, tag=tag)


def delivered(world: ConnectorWorld) -> list[str]:
    return [record.headers["delivery_id"].decode() for record in world.read("dispatch")]


def test_later_rows_of_a_key_wait_in_order_also_after_a_restart_until_released(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    routes = with_policy(world, "wait")
    with world.connector(routes=routes) as connector:
        world.streaming(connector)
        insert(connection, "first-")
        insert(connection, "large-", LARGE)
        insert(connection, "behind-")
        insert_dispatches(connection, 2, destinations=2, tag="others-")  # one of the held key, one of another
        world.read_when("quarantine", 3)
        assert delivered(world) == ["first-1", "others-1"]
    with world.connector(routes=routes) as connector:
        world.streaming(connector)
        insert(connection, "later-")
        refused = world.read_when("quarantine", 4)
        assert [record.headers["delivery_id"] for record in refused] == [
            b"large-1",
            b"behind-1",
            b"others-2",
            b"later-1",
        ]
        assert all(b"held behind" in record.headers["quarantine_reason"] for record in refused[1:])
        assert all(record.headers["id"] for record in refused)
        listed = outrider("quarantine", "list", "--key", "destination 0", "--json").stdout.splitlines()[-1]
        assert listed.count('"kind": "row"') == 4
        # It still does not fit: nothing moves, and the answer says so.
        refusal = outrider("quarantine", "release", str(refused[0].offset), "--reason", "try")
        assert refusal.exit_code == 1
        assert "1 rows still cannot be published" in refusal.stdout
        assert "3 rows wait behind those" in refusal.stdout
        assert delivered(world) == ["first-1", "others-1"]
        set_dispatch_limit(world, 4 * LARGE)
        done = outrider("quarantine", "release", str(refused[2].offset), "--reason", "limit raised")
        assert done.exit_code == 0, done.stderr
        assert "4 rows published" in done.stdout
        insert(connection, "after-")
        assert_exactly_once_in_order(world, connection)
        again = outrider("quarantine", "release", str(refused[0].offset), "--reason", "twice")
        assert (again.exit_code, "was settled before" in again.stderr) == (0, True)
    assert len(delivered(world)) == 7
    shown = outrider("quarantine", "show", str(refused[0].offset))
    assert "released by" in shown.stdout
    kinds = connection.execute(
        "select kind, reason, counts->'released' from outrider.run order by started_at"
    ).fetchall()
    assert kinds == [("quarantine.release", "try", 0), ("quarantine.release", "limit raised", 4)]


def test_later_rows_pass_by_default_and_each_row_is_released_once(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert(connection, "large-", LARGE, destinations=3)
        insert(connection, "small-", destinations=3)
        refused = world.read_when("quarantine", 3)
        assert sorted(delivered(world)) == ["small-1", "small-2", "small-3"]
        assert connector.status.quarantined == 3
    set_dispatch_limit(world, 4 * LARGE)
    # With no connector running, it is said what will happen; the next to start does it, once.
    waits = outrider("quarantine", "release", str(refused[0].offset), str(refused[0].offset), "--reason", "raised")
    assert waits.exit_code == 1
    assert "no connector reads slot" in waits.stdout
    outrider("quarantine", "release", str(refused[0].offset), "--reason", "again, before it was done")
    with world.connector() as connector:
        world.streaming(connector)
        world.read_when("dispatch", 4)
        looked = outrider("quarantine", "release", "--all", "--reason", "the rest")
        assert "would release 2 rows and 0 messages" in looked.stdout
        assert outrider("quarantine", "release", "--all", "--reason", "the rest", "--yes").exit_code == 0
        ids = sorted(record.headers["id"] for record in world.read_when("dispatch", 6))
        assert len(ids) == len(set(ids)) == 6
        assert "0 rows and 0 messages" in outrider("quarantine", "release", "--all", "--reason", "nothing").stdout


def test_a_row_that_its_table_has_lost_is_settled_as_gone_and_one_that_is_given_up_frees_its_key(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    with world.connector(routes=with_policy(world, "wait")) as connector:
        world.streaming(connector)
        insert(connection, "gone-", LARGE)
        insert(connection, "large-", LARGE)
        insert(connection, "small-")
        world.read_when("quarantine", 3)
        connection.execute("delete from outrider.dispatch_outbox where delivery_id = 'gone-1'")
        done = outrider("quarantine", "release", "--all", "--yes", "--give-up", "--reason", "too large for ever")
        assert done.exit_code == 0, done.stderr
        assert "1 rows published" in done.stdout
        assert "1 rows are not in their table any more" in done.stdout
        assert "1 rows were given up" in done.stdout
        insert(connection, "next-")
        world.read_when("dispatch", 2)
    assert delivered(world) == ["small-1", "next-1"]


def test_more_held_keys_than_may_be_stop_the_connector_rather_than_lose_their_order(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    insert(connection, "large-", LARGE, destinations=3)
    insert(connection, "small-", destinations=3)
    with (
        pytest.raises(ConfigurationError, match="2 keys are held behind rows in quarantine, and no more may be"),
        world.connector(routes=with_policy(world, "wait"), held_keys_max=2) as connector,
    ):
        wait_until(lambda: connector.status.state == "stopped", lambda: f"it stops ({connector.status})")
    assert world.read("dispatch") == world.read("quarantine") == []
    with world.connector(routes=with_policy(world, "wait"), held_keys_max=3) as connector:
        world.streaming(connector)
        world.read_when("quarantine", 6)
    assert world.read("dispatch") == []


def test_a_message_that_no_worker_could_read_is_dispatched_anew(
    world: ConnectorWorld, connection: psycopg.Connection, outrider: Outrider
) -> None:
    connection.execute("insert into outrider.destination (destination_id, url) values ('acme', 'https://acme.example')")
    row = connection.execute(
        "select delivery_id from outrider.admit(event_id => 'e1', event_type => 't', payload => 'x', destinations => array['acme'])"
    ).fetchone()
    assert row is not None
    (delivery_id,) = row
    producer = Producer(dict(world.kafka))
    for headers in (
        {"delivery_id": delivery_id, "dispatch_seq": "1"},
        {"delivery_id": delivery_id, "dispatch_seq": "1", "id": "the same once more"},
        {},
    ):
        producer.produce(
            world.settings.name("quarantine"),
            b"\xff",
            b"acme",
            headers={**headers, "quarantine_reason": "header event_id is no UTF-8", "quarantine_origin": "t/0/1"},
        )
    assert producer.flush(30) == 0
    listed = outrider("quarantine", "list", "--kind", "message")
    assert listed.stdout.count("header event_id is no UTF-8") == 3
    done = outrider("quarantine", "release", "--all", "--yes", "--reason", "headers mended")
    assert done.exit_code == 1
    assert "dispatched again as number 2" in done.stdout
    assert "the delivery has gone on by itself" in done.stdout
    assert "names no delivery" in done.stderr
    found = connection.execute(
        "select state, dispatch_seq, (select count(*) from outrider.dispatch_outbox o where o.delivery_id = d.delivery_id)"
        " from outrider.delivery d"
    ).fetchall()
    assert found == [("enqueued", 2, 2)]
    assert outrider("quarantine", "release", "--all", "--yes", "--give-up", "--reason", "it is noise").exit_code == 0
    assert len(outrider("quarantine", "list").stdout.splitlines()) == 1
    kinds = connection.execute("select kind, reason from outrider.run where woken_by = 'operator' order by started_at")
    assert kinds.fetchall() == [
        ("quarantine.release", "headers mended"),
        ("quarantine.release", "it is noise"),
        ("quarantine.give_up", "it is noise"),
    ]
