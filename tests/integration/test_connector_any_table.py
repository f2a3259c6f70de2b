"""The connector for tables that know nothing of this project: every type, other routes, changing columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not declared so

from connectors.errors import ConfigurationError
from connectors.postgres.replication import connect
from connectors.postgres.snapshot import read_table
from connectors.postgres.values import BinaryUnsupportedError, codec_of
from connectors.router import ColumnValue, Header, JsonValue, Route
from tests.support.connector_world import ConnectorWorld, drop_slot, wait_until, world_of

EVERY_TYPE = """
create type shop.mood as enum ('fine', 'größer');
create type shop.point as (x integer, y text);
create domain shop.amount as numeric(10, 2) check (value > 0);
create table shop.every_type (
  id bigint generated always as identity primary key, b boolean, i2 smallint, i4 integer, i8 bigint, o oid, f4 real,
  f8 double precision, n numeric, t text, v varchar, c char(5), na name, ch "char", u uuid, by bytea, j json, jb jsonb,
  d date, ts timestamp, tz timestamptz, ta text[], ia integer[], na2 numeric[], tza timestamptz[], ja jsonb[], ba bytea[]
);
insert into shop.every_type (b, i2, i4, i8, o, f4, f8, n, t, v, c, na, ch, u, by, j, jb, d, ts, tz, ta, ia, na2, tza, ja, ba)
values
  (true, -32768, -2147483648, -9223372036854775808, 4294967295, '-Infinity', 'NaN', 'NaN', '', '', '', '', 'x',
   '00000000-0000-0000-0000-000000000000', '', '{"a":  1.10}', '{"a": 1.10}', '4714-11-24 BC', '4714-11-24 00:00:00 BC',
   '4714-11-24 00:00:00+00 BC', '{}', '{}', '{}', '{}', '{}', '{}'),
  (false, 32767, 2147483647, 9223372036854775807, 0, 3.4028235e38, 1.7976931348623157e308, -1e-20, E'a\\n"\\\\é',
   'v', 'abc', 'name', 'y', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\\x00ff', '[]', '"x"', '5874897-12-31',
   '294276-12-31 23:59:59.999999', '294276-12-31 23:59:59.999999+00', array['a,b', 'c"d', null, 'NULL', '', '\\'],
   '{{1,2},{3,4}}', '{1.50,NaN,null}', '{2000-01-01 00:00:00+00,infinity}', array['{"k": [1]}'::jsonb, null],
   array['\\x00ff'::bytea]),
  (null, 0, 0, 0, 0, 1e-45, 5e-324, 12345678901234567890.0123456789000, 'ascii', null, null, null, null, null, null,
   null, null, 'infinity', '-infinity', 'infinity', null, '[2:3]={7,8}', null, null, null, null),
  (null, 1, 1, 1, 1, 0.1, 0.1, 10000, null, null, null, null, null, null, null, null, null, '0001-01-01',
   '2024-02-29 12:00:00.5', '0001-01-01 00:00:00+00', null, null, null, null, null, null),
  (null, 1, 1, 1, 1, 16777216, 1e22, 0.00, null, null, null, null, null, null, null, null, null, '0001-12-31 BC',
   '0001-12-31 23:59:59 BC', '1999-12-31 23:59:59.999999+00', null, null, null, null, null, null);
"""

OUTBOX = """
create table shop.outbox (id bigint generated always as identity primary key, owner text, body bytea, note text);
create publication shop for table shop.outbox;
"""


@pytest.fixture
def connection(empty_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("create schema shop")
        yield connection


@pytest.fixture
def world(empty_database: str, bootstrap_servers: str, topic_prefix: str) -> ConnectorWorld:
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
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics([NewTopic(f"{topic_prefix}.shop", 2, 1)]).values():
        created.result(30)
    return world


def outbox_route(world: ConnectorWorld, *headers: Header) -> Route:
    return Route(
        namespace="shop",
        table="outbox",
        topic=world.settings.name("shop"),
        key="owner",
        value=ColumnValue("body"),
        headers=headers,
        snapshot_order=("id",),
    )


def test_every_type_gives_the_same_text_from_both_forms_and_valid_json(
    connection: psycopg.Connection, empty_database: str
) -> None:
    connection.execute(EVERY_TYPE)
    names = [
        name
        for (name,) in connection.execute(
            "select attname from pg_attribute where attrelid = 'shop.every_type'::regclass and attnum > 0 order by attnum"
        )
    ]
    with connect(empty_database, replication=False) as reader:
        forms = [
            list(read_table(reader, "shop", "every_type", names, ["id"], binary=binary)) for binary in (True, False)
        ]
    compared = 0
    for (relation, binary_row), (_, text_row) in zip(*forms, strict=True):
        for column, binary, text in zip(relation.columns, binary_row, text_row, strict=True):
            assert (binary is None) == (text is None)
            if isinstance(binary, bytes) and isinstance(text, str):
                codec = codec_of(column.type_oid)
                assert codec.text(binary) == codec.text(text), column.name
                assert codec.body(binary) == codec.body(text), column.name
                json.loads(codec.json(binary))
                compared += 1
    assert compared > 80


def test_types_without_a_known_binary_form_are_streamed_as_text(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    connection.execute(EVERY_TYPE)
    connection.execute(
        """
        create table shop.outbox (id bigint generated always as identity primary key, owner text, body bytea,
                                  mood shop.mood, point shop.point, price shop.amount, took interval, peer inet);
        create publication shop for table shop.outbox;
        """
    )
    columns = ("id", "mood", "point", "price", "took", "peer")
    route = Route(
        namespace="shop",
        table="outbox",
        topic=world.settings.name("shop"),
        key="owner",
        value=JsonValue(columns),
        headers=(Header("mood", "mood"),),
    )
    insert = (
        "insert into shop.outbox (owner, body, mood, point, price, took, peer)"
        " values ('acme', '\\x00', 'größer', (1, 'a b'), 1.50, '1 day 2 hours', '10.0.0.1')"
    )
    connection.execute(insert)
    with world.connector(routes=(route,)) as connector:
        world.streaming(connector)
        connection.execute(insert)
        records = world.read_when("shop", 2)
    values = [json.loads(record.value or b"") for record in records]
    assert [value.pop("id") for value in values] == [1, 2]
    assert (
        values == [{"mood": "größer", "point": '(1,"a b")', "price": "1.50", "took": "P1DT2H", "peer": "10.0.0.1"}] * 2
    )
    assert {record.headers["mood"].decode() for record in records} == {"größer"}
    with pytest.raises(BinaryUnsupportedError):
        codec_of(999_999).text(b"")


def test_columns_may_be_added_renamed_and_dropped_in_mid_stream(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    connection.execute(OUTBOX)
    route = outbox_route(world, Header("note", "note"))
    with world.connector(routes=(route,)) as connector:
        world.streaming(connector)
        connection.execute("insert into shop.outbox (owner, body, note) values ('a', '\\x01', 'one')")
        connection.execute("alter table shop.outbox add extra integer default 7")
        connection.execute("insert into shop.outbox (owner, body, note) values ('a', '\\x02', 'two')")
        connection.execute("alter table shop.outbox drop column note")
        connection.execute("alter table shop.outbox rename column extra to note")
        connection.execute("insert into shop.outbox (owner, body, note) values ('a', '\\x03', 3)")
        records = world.read_when("shop", 3)
        assert [(record.value, record.headers) for record in records] == [
            (b"\x01", {"note": b"one"}),
            (b"\x02", {"note": b"two"}),
            (b"\x03", {"note": b"3"}),
        ]
        # A column that the route cannot do without: named, and taken up again once it is back.
        with connection.transaction():
            connection.execute("alter table shop.outbox rename column body to contents")
            connection.execute("insert into shop.outbox (owner, contents, note) values ('a', '\\x04', 4)")
        wait_until(
            lambda: "has no column 'body'" in connector.status.reason, lambda: f"it is named ({connector.status})"
        )
    with world.connector(routes=(Route(**{**route_fields(route), "value": ColumnValue("contents")}),)):
        assert [record.value for record in world.read_when("shop", 4)] == [b"\x01", b"\x02", b"\x03", b"\x04"]


def route_fields(route: Route) -> dict[str, object]:
    return {name: getattr(route, name) for name in Route.__dataclass_fields__}


def test_rows_without_a_key_are_quarantined_and_other_changes_are_counted(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    connection.execute(OUTBOX)
    with world.connector(routes=(outbox_route(world),)) as connector:
        world.streaming(connector)
        connection.execute("insert into shop.outbox (owner, body) values (null, '\\x01'), ('a', '\\x02'), ('a', null)")
        connection.execute("update shop.outbox set note = 'changed'")
        connection.execute("delete from shop.outbox")
        connection.execute("truncate shop.outbox")
        connection.execute("insert into shop.outbox (owner, body) values ('a', '\\x03')")
        assert [record.value for record in world.read_when("shop", 3)] == [b"\x02", None, b"\x03"]
        (refused,) = world.read_when("quarantine", 1)
    assert refused.headers["quarantine_reason"] == b"key column 'owner' is NULL"
    assert connector.status.quarantined == 1
    assert connector.status.unrouted == 3 + 3 + 1


def test_rows_of_a_table_without_an_id_cannot_be_told_from_published_ones_but_into_a_new_topic_all_are_published(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    connection.execute(OUTBOX)
    insert = "insert into shop.outbox (owner, body) values ('a', '\\x01')"
    connection.execute(insert)
    without, with_id = outbox_route(world), replace(outbox_route(world, Header("id", "id")), id="id")
    with world.connector(routes=(without,)) as connector:
        world.streaming(connector)
        connection.execute(insert)
        world.read_when("shop", 2)
    drop_slot(connection, world.config.slot)
    # Also a route that has one from now on: the records that are there do not carry it.
    for route in (without, with_id):
        refusal = r"which rows of table shop\.outbox are in topic .* cannot be told: no record carries an id"
        with pytest.raises(ConfigurationError, match=refusal), world.connector(routes=(route,)) as connector:
            world.streaming(connector)
    assert len(world.read("shop")) == 2
    # What the refusal says is what helps.
    admin = AdminClient({"bootstrap.servers": world.settings.kafka_bootstrap_servers})
    topic = world.settings.name("shop")
    for deleted in admin.delete_topics([topic], operation_timeout=30).values():
        deleted.result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, lambda: "the topic is gone")
    for created in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        created.result(30)
    with world.connector(routes=(with_id,)) as connector:
        world.streaming(connector)
    assert [record.headers["id"] for record in world.read("shop")] == [b"1", b"2"]
    drop_slot(connection, world.config.slot)
    connection.execute(insert)
    with world.connector(routes=(with_id,)) as connector:
        world.streaming(connector)
    assert [record.headers["id"] for record in world.read("shop")] == [b"1", b"2", b"3"]


def test_a_route_that_does_not_fit_is_refused_at_the_start(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    connection.execute(OUTBOX)
    route = outbox_route(world, Header("missing", "missing"))
    with (
        pytest.raises(ConfigurationError, match=r"shop\.outbox has no column 'missing'"),
        world.connector(routes=(route,)) as connector,
    ):
        world.streaming(connector)
