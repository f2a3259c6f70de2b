"""Real Debezium: its records beside those of our profile of it; and in our connector's place, there and back.

What an operator types for that is in docs/operations.md; here it is typed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.debezium.profile import event_router_route
from pipeline.stack.connect_server import ConnectServer
from pipeline.stack.guard import Guard
from tests.fixtures.components import StartComponent
from tests.fixtures.databases import database_name
from tests.support.connector_world import world_of
from tests.support.debezium_world import address, connect_worker, contents, run, shipped
from tests.support.delivery_world import World, opened, wait_until
from topics.codecs import Attempt, decode_attempt

NAMES = ("outrider-dispatch", "outrider-attempts")
TABLES = """
create table outbox_bytes (
  n bigint generated always as identity, id uuid primary key default gen_random_uuid(), aggregatetype text not null,
  aggregateid text not null, type text not null default 't', payload bytea, tenant text, seq integer, big bigint,
  small smallint, urgent boolean, meta jsonb, plain json, trace uuid, label varchar
);
create table outbox_text (like outbox_bytes including all);
alter table outbox_text alter column payload type text using null;
create publication shop for table outbox_bytes, outbox_text with (publish = 'insert, update, delete');
"""
HEADERS = ("seq", "tenant", "big", "small", "urgent", "meta:header:about", "plain", "trace", "label")
KINDS = ("order", "Invoice")
AWKWARD = (
    b'{"b": 1,  "a": 1.10, "a": 2, "n": 1.0e2, "big": 12345678901234567890.123}',
    '{"name": "größer ☃ 𝄞", "escaped": "\\u00e9\\n\\"", "empty": [], "null": null}'.encode(),
    b"[1.0, 1.00, -0.0, 1e400]",
    b'"just text"',
    b"no json at all {",
    b"",
    b" ",
    None,
    b"x" * 256 * 1024,
)
NOT_TEXT = (b"\0", bytes(range(256)), b"\xff\xfe\xc3\x28", random.Random(7).randbytes(256 * 1024))
ROWS_IN_ORDER = 40
TABLE_CONVERTERS = {
    "outbox_bytes": "io.debezium.converters.BinaryDataConverter",
    "outbox_text": "org.apache.kafka.connect.storage.StringConverter",
}


@pytest.fixture(scope="module")
def connect(bootstrap_servers: str, login_roles: dict[str, tuple[str, str]], guard: Guard) -> Iterator[ConnectServer]:
    """One worker for the module: it takes a quarter of a minute to start."""
    with connect_worker(bootstrap_servers, "test-connect", login_roles["connector"], guard.end) as server:
        yield server


def router_properties(topic: str, *, tombstone: bool) -> dict[str, str]:
    placement = ",".join(header if ":" in header else f"{header}:header" for header in HEADERS)
    return {
        "table.fields.additional.placement": placement,
        "route.topic.replacement": f"{topic}.${{routedByValue}}",
        "route.tombstone.on.empty.payload": "true" if tombstone else "false",
    }


def theirs(dsn: str, table: str, slot: str, properties: dict[str, str], converter: str) -> dict[str, str]:
    """Debezium for any table: the router's properties as in somebody's own file, the rest as we ship it."""
    rest = {name: value for name, value in shipped("outrider-dispatch").items() if not name.startswith("transforms.")}
    return {
        **rest,
        **address(dsn),
        "slot.name": slot,
        "topic.prefix": slot,
        "publication.name": "shop",
        "table.include.list": f"public.{table}",
        "value.converter": converter,
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        **{f"transforms.outbox.{name}": value for name, value in properties.items()},
    }


def insert(connection: psycopg.Connection, table: str, number: int, payload: bytes | str | None) -> None:
    row = {
        "aggregatetype": KINDS[number % 2],
        "aggregateid": ("größe 1", "plain", "", " ☃")[number % 4],
        "payload": payload,
    }
    if number % 3:
        row |= {
            "tenant": 'größe "1"',
            "seq": -(2**31),
            "big": 2**63 - 1,
            "small": 0,
            "urgent": number % 2 == 0,
            "meta": '{"a":  1.10, "ü": null}',
            "plain": '{"a":  1.10, "a": 2}',
            "trace": "00000000-0000-4000-8000-00000000000F",
            "label": "",
        }
    places = ", ".join(f"%({name})s" for name in row)
    connection.execute(f"insert into {table} ({', '.join(row)}) values ({places})", row)


def test_our_profile_gives_the_records_of_real_debezium(
    connect: ConnectServer,
    empty_database: str,
    bootstrap_servers: str,
    topic_prefix: str,
    login_roles: dict[str, tuple[str, str]],
) -> None:
    role, _ = login_roles["connector"]
    sides = {side: f"{topic_prefix}.{side}" for side in ("ours", "theirs")}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [f"{side}.{table}.{kind}" for side in sides.values() for table in TABLE_CONVERTERS for kind in KINDS]
    for created in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        created.result(30)
    world = world_of(
        {
            "postgres_dsn": empty_database,
            "kafka_bootstrap_servers": bootstrap_servers,
            "topic_prefix": topic_prefix,
            "connector_slot": topic_prefix.replace("-", "_"),
            "connector_publication": "shop",
        }
    )
    world.create_topics()

    def properties(side: str, table: str) -> dict[str, str]:
        return router_properties(f"{sides[side]}.{table}", tombstone=table == "outbox_text")

    routes = tuple(
        event_router_route(
            "public",
            table,
            properties("ours", table),
            topics=[f"{sides['ours']}.{table}.{kind}" for kind in KINDS],
        )
        for table in TABLE_CONVERTERS
    )
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(f"grant select on all tables in schema public to {role}")
    with psycopg.connect(empty_database, autocommit=True) as connection, world.connector(routes=routes) as connector:
        for table, converter in TABLE_CONVERTERS.items():
            slot = f"{world.settings.connector_slot}_{table}"
            run(connect.client, slot, theirs(empty_database, table, slot, properties("theirs", table), converter))
        world.streaming(connector)
        payloads = {
            "outbox_bytes": [*AWKWARD, *NOT_TEXT],
            "outbox_text": [None if payload is None else payload.decode() for payload in AWKWARD],
        }
        for table, some in payloads.items():
            some += [str(number).encode() for number in range(ROWS_IN_ORDER)]
            for number, payload in enumerate(some):
                insert(connection, table, number, payload)
            connection.execute(f"update {table} set tenant = 'changed'")
            connection.execute(f"delete from {table}")
            insert(connection, table, 0, "last")
        for table, some in payloads.items():
            for parity, kind in enumerate(KINDS):
                count = len(some[parity::2]) + (parity == 0)
                ours, theirs_ = (
                    contents(bootstrap_servers, f"{side}.{table}.{kind}", count) for side in sides.values()
                )
                assert ours == theirs_
        for table in TABLE_CONVERTERS:
            connect.client.delete(f"{world.settings.connector_slot}_{table}")


def edited(name: str, database: str, topic_prefix: str) -> dict[str, str]:
    """The configuration as we ship it, with this test's database, slot and topics in place of the usual ones."""
    config = shipped(name)
    slot = slot_of(name, database)
    topics = {key: value for key, value in config.items() if key.endswith(".replacement")}
    topics = {key: value.replace("outrider.", f"{topic_prefix}.", 1) for key, value in topics.items()}
    return {**config, **address(database), **topics, "slot.name": slot, "topic.prefix": slot}


def slot_of(name: str, database: str) -> str:
    return f"{database_name(database)}_{name.removeprefix('outrider-')}"


def settled(world: World) -> bool:
    """Whether everything is delivered. What the worker parked is dispatched again, by way of the outbox."""
    world.enqueue_pending(world.ledger)
    return set(world.states()) == {"succeeded"}


def assert_same(attempt: Attempt, row: dict[str, Any]) -> None:
    for field in attempt.__struct_fields__:
        told, stored = getattr(attempt, field), row[field]
        if field == "response_headers" and told is None:
            continue  # Debezium could only write it as a string, so its configuration leaves it out
        if isinstance(stored, datetime):
            assert datetime.fromisoformat(told) == stored, field
        else:
            assert told == stored, field


def ids(messages: Iterable[Message]) -> Counter[str]:
    return Counter(dict(message.headers() or [])["id"].decode() for message in messages)


def test_debezium_takes_over_and_gives_back_without_a_gap_or_a_repeat(
    connect: ConnectServer, settings_values: dict[str, object], role_dsns: dict[str, str], component: StartComponent
) -> None:
    database, topic_prefix = str(settings_values["postgres_dsn"]), str(settings_values["topic_prefix"])
    bootstrap_servers = str(settings_values["kafka_bootstrap_servers"])
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("a")
        admitted: dict[str, bytes] = {}

        def admit(payload: bytes) -> None:
            (delivery_id,) = world.admit(f"event {len(admitted)}", "a", payload=payload, headers={"x": "y"})
            admitted[delivery_id] = payload

        component("worker")
        ours = component("connector")
        admit(b"by our connector")
        wait_until(lambda: settled(world), "our connector feeds the worker")

        # Using Debezium instead.
        assert ours.terminate(30) == 0
        admit(b"by neither")
        slot = database_name(database)
        with psycopg.connect(role_dsns["connector"], autocommit=True) as operator:
            for name in NAMES:
                operator.execute("select pg_copy_logical_replication_slot(%s, %s)", [slot, slot_of(name, database)])
        for name in NAMES:
            run(connect.client, name, edited(name, database, topic_prefix))
        with psycopg.connect(role_dsns["connector"], autocommit=True) as operator:
            operator.execute("select pg_drop_replication_slot(%s)", [slot])
        for payload in (*AWKWARD, *NOT_TEXT):
            if payload is not None:
                admit(payload)
        wait_until(lambda: settled(world), "Debezium feeds the worker")
        wait_until(lambda: len(world.records(f"{topic_prefix}.attempts")) == len(admitted), "and brings the attempts")

        # Leaving Debezium.
        for name in NAMES:
            connect.client.stop(name)
            connect.client.delete(name)
        admit(b"by neither again")
        with psycopg.connect(role_dsns["connector"], autocommit=True) as operator:
            for name in NAMES:
                operator.execute("select pg_drop_replication_slot(%s)", [slot_of(name, database)])
        component("connector")
        admit(b"by our connector again")
        wait_until(lambda: settled(world), "our connector feeds the worker again")

        attempts = {row["attempt_id"]: row for delivery_id in admitted for row in world.attempts(delivery_id)}
        assert len(attempts) == len(admitted)
        wait_until(
            lambda: len(world.records(f"{topic_prefix}.attempts")) >= len(attempts), "every attempt is published"
        )
        assert {received.delivery_id: received.body for received in world.receiver.received} == admitted
        assert len(world.receiver.received) == len(admitted)
        messages = world.ledger.execute("select message_id::text from outrider.dispatch_outbox").fetchall()
        assert ids(world.records(world.dispatch)) == Counter(message_id for (message_id,) in messages)
        records = world.records(f"{topic_prefix}.attempts")
        assert ids(records) == Counter(map(str, attempts))
        for record in records:
            attempt = decode_attempt(record.value())
            assert isinstance(attempt, Attempt), attempt
            assert_same(attempt, attempts[attempt.attempt_id])
            assert record.key() == b"a"
            assert record.headers() == [
                ("id", str(attempt.attempt_id).encode()),
                ("delivery_id", attempt.delivery_id.encode()),
                ("result", attempt.result.encode()),
            ]
