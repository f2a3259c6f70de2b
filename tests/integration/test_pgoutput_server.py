"""What a real server sends in both protocol versions, decoded: every kind of message, and whole transactions again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from connectors.postgres.domains import Domains
from connectors.postgres.framing import XLOG_HEADER_BYTES
from connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Decoder,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)
from connectors.postgres.values import codec_of
from tests.fixtures.databases import database_name

LARGE = "x" * 20_000


@pytest.fixture
def server(empty_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        yield connection


@contextmanager
def slot(connection: psycopg.Connection, dsn: str) -> Iterator[str]:
    """A slot of pgoutput at the present moment; a test's database drops it."""
    name = f"{database_name(dsn)}_decode"
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    yield name


def messages(connection: psycopg.Connection, name: str, **options: str) -> list[Message]:
    """Everything that the slot has, as one decoder sees it."""
    arguments = [text for pair in {"publication_names": "p", "messages": "true", **options}.items() for text in pair]
    rows = connection.execute(
        "select data from pg_logical_slot_get_binary_changes(%s, null, null, variadic %s)", [name, arguments]
    )
    decoder = Decoder()
    return [decoder.decode(b"w" + bytes(XLOG_HEADER_BYTES - 1) + bytes(data), XLOG_HEADER_BYTES) for (data,) in rows]


def of(kind: type, found: list[Message]) -> list[Message]:
    return [message for message in found if type(message) is kind]


@pytest.mark.parametrize("binary", ["false", "true"])
def test_every_kind_of_message_of_version_1(server: psycopg.Connection, empty_database: str, binary: str) -> None:
    server.execute(
        """
        create type mood as enum ('fine'); create domain amount as numeric(10, 2);
        create table t (id integer primary key, mood mood, price amount, body text);
        alter table t alter body set storage external;
        create table u (id integer primary key); alter table u replica identity full;
        create publication p for table t, u;
        """
    )
    with slot(server, empty_database) as name:
        server.execute("insert into t values (1, 'fine', 1.5, %s), (2, null, null, '')", [LARGE])
        server.execute("update t set price = 2 where id = 1")
        server.execute("update t set id = 3 where id = 1")
        server.execute("delete from t where id = 3")
        server.execute("insert into u values (1)")
        server.execute("update u set id = 2")
        server.execute("delete from u")
        server.execute("truncate t, u restart identity cascade")
        with server.transaction():
            server.execute("select pg_logical_emit_message(true, 'größe', 'in'::text)")
            server.execute("select pg_logical_emit_message(false, 'größe', '\\x00ff'::bytea)")
        server.execute("select pg_replication_origin_create(%s)", [name])
        server.execute("select pg_replication_origin_session_setup(%s)", [name])
        server.execute("insert into u values (9)")
        server.execute("select pg_replication_origin_session_reset()")
        found = messages(server, name, proto_version="1", binary=binary)
        server.execute("select pg_replication_origin_drop(%s)", [name])
    kinds = {type(message) for message in found}
    assert kinds == {Begin, Commit, Relation, Type, Insert, Update, Delete, Truncate, LogicalMessage, Origin}
    one = b"\0\0\0\1" if binary == "true" else "1"
    inserts = of(Insert, found)
    assert [row.values[0] for row in inserts if isinstance(row, Insert)][:1] == [one]
    unchanged, moved, whole = of(Update, found)
    assert isinstance(unchanged, Update) and isinstance(moved, Update) and isinstance(whole, Update)  # noqa: PT018
    assert (unchanged.old, unchanged.values[3]) == (None, UNCHANGED)
    assert (moved.old, moved.old_is_key) == ([one, None, None, None], True)
    assert (whole.old, whole.old_is_key) == ([one], False)
    assert [isinstance(row, Delete) and row.old_is_key for row in of(Delete, found)] == [True, False]
    (truncated,) = of(Truncate, found)
    assert isinstance(truncated, Truncate)
    assert (len(truncated.relation_oids), truncated.cascade, truncated.restart_identity) == (2, True, True)
    told = {(m.transactional, m.prefix, m.content) for m in found if isinstance(m, LogicalMessage)}
    assert told == {(True, "größe", b"in"), (False, "größe", b"\0\xff")}
    # A domain is described by the type at its bottom.
    types = {(m.namespace, m.name) for m in found if isinstance(m, Type)}
    assert types == {("public", "mood"), ("pg_catalog", "numeric")}
    assert [m.name for m in found if isinstance(m, Origin)] == [name]


def whole_transactions(found: list[Message]) -> list[list[Message]]:
    """Transactions in the order of their commits, without what was rolled back: what version 1 would have sent."""
    done: list[list[Message]] = []
    open_: dict[int, list[tuple[int, Message]]] = {}
    current: list[tuple[int, Message]] = []
    for message in found:
        match message:
            case Begin():
                current = []
            case Commit():
                done.append([change for _, change in current])
            case StreamStart(xid=xid):
                current = open_.setdefault(xid, [])
            case StreamCommit(xid=xid):
                done.append([change for _, change in open_.pop(xid)])
            case StreamAbort(xid=xid, subxid=subxid) if xid == subxid:
                open_.pop(xid, None)
            case StreamAbort(xid=xid, subxid=subxid):
                open_[xid][:] = [(by, change) for by, change in open_[xid] if by != subxid]
            case StreamStop():
                current = []
            case Insert(xid=xid):
                current.append((xid or 0, message))
            case _:
                pass
    assert not open_
    return done


def numbers(transactions: list[list[Message]]) -> list[list[str]]:
    return [[str(row.values[0]) for row in rows if isinstance(row, Insert)] for rows in transactions]


def test_streamed_transactions_of_version_2_are_those_of_version_1(
    server: psycopg.Connection, empty_database: str
) -> None:
    server.execute(
        "create table t (id integer, body text); create table u (like t); create publication p for table t, u"
    )
    fill = "insert into t select n, repeat('x', 100) from generate_series(%s::integer, %s) n"
    with slot(server, empty_database) as name, psycopg.connect(empty_database) as other:
        other.execute(fill.replace("into t", "into u"), [1, 1500])
        with server.transaction():
            server.execute(fill, [10_001, 11_000])
            server.execute("savepoint before")
            server.execute(fill, [20_001, 21_000])
            server.execute("rollback to before")
            server.execute("alter table t add extra integer default 5")
            server.execute("select pg_logical_emit_message(true, 'in', 'stream'::text)")
            server.execute(fill.replace("t select n,", "t (id, body) select n,"), [30_001, 30_500])
        other.rollback()
        server.execute("insert into t values (7, '')")
        server.execute("set logical_decoding_work_mem = '64kB'")
        peek = f"{name}_two"
        server.execute("select pg_copy_logical_replication_slot(%s, %s)", [name, peek])
        streamed = messages(server, peek, proto_version="2", streaming="on")
        plain = messages(server, name, proto_version="1")
    assert {StreamStart, StreamStop, StreamCommit, StreamAbort} <= {type(message) for message in streamed}
    assert any(isinstance(m, Relation) and m.xid is not None and len(m.columns) == 3 for m in streamed)
    assert any(isinstance(m, LogicalMessage) and m.xid is not None for m in streamed)
    expected = [[str(n) for n in (*range(10_001, 11_001), *range(30_001, 30_501))], ["7"]]
    assert numbers(whole_transactions(plain)) == expected
    assert numbers(whole_transactions(streamed)) == expected


@pytest.mark.parametrize("binary", ["false", "true"])
def test_domains_have_the_binary_form_of_their_types(
    server: psycopg.Connection, empty_database: str, binary: str
) -> None:
    server.execute(
        """
        create domain amount as numeric(10, 2); create domain price as amount check (value > 0);
        create domain tags as text[]; create domain "größe" as integer;
        create table t (a amount, p price, g tags, i "größe", plain integer); create publication p for table t;
        """
    )
    with slot(server, empty_database) as name:
        server.execute("insert into t values (1, 2, '{a,\"b c\"}', 3, 4)")
        found = messages(server, name, proto_version="1", binary=binary)
    domains = Domains()
    for message in found:
        if isinstance(message, Type):
            domains.learn(message)
    (relation,) = (domains.resolve(message) for message in found if isinstance(message, Relation))
    (row,) = (message for message in found if isinstance(message, Insert))
    texts = [
        codec_of(column.type_oid).text(value)
        for column, value in zip(relation.columns, row.values, strict=True)
        if isinstance(value, bytes | str)
    ]
    assert texts == [b"1.00", b"2.00", b'["a","b c"]', b"3", b"4"]


@pytest.mark.parametrize(("via_root", "names"), [("true", {"root"}), ("false", {"leaf_1", "leaf_2"})])
def test_rows_of_a_partitioned_table_name_root_or_leaf(
    server: psycopg.Connection, empty_database: str, via_root: str, names: set[str]
) -> None:
    server.execute(
        f"""
        create table root (id integer, note text) partition by range (id);
        create table leaf_1 partition of root for values from (0) to (10);
        create table leaf_2 (note text, extra_once integer, id integer);
        alter table leaf_2 drop column extra_once;
        alter table root attach partition leaf_2 for values from (10) to (20);
        create publication p for table root with (publish_via_partition_root = {via_root});
        """
    )
    with slot(server, empty_database) as name:
        server.execute("insert into root values (1, 'a'), (11, 'b')")
        found = messages(server, name, proto_version="1")
    relations = {m.oid: m for m in found if isinstance(m, Relation)}
    rows = [m for m in found if isinstance(m, Insert)]
    assert {relations[row.relation_oid].name for row in rows} == names
    by_name = [
        dict(zip((c.name for c in relations[row.relation_oid].columns), row.values, strict=True)) for row in rows
    ]
    assert by_name == [{"id": "1", "note": "a"}, {"id": "11", "note": "b"}]


def test_a_table_that_changes_in_mid_transaction_is_described_again(
    server: psycopg.Connection, empty_database: str
) -> None:
    server.execute("create table t (a integer, b text); create publication p for table t")
    with slot(server, empty_database) as name:
        with server.transaction():
            server.execute("insert into t values (1, 'one')")
            server.execute("alter table t rename a to c")
            server.execute("insert into t values (2, 'two')")
            server.execute("alter table t drop b, add a integer[], alter c type text")
            server.execute("insert into t values ('three', '{3,null}')")
        found = messages(server, name, proto_version="1")
    seen, relation = [], None
    for message in found:
        if isinstance(message, Relation):
            relation = message
        elif isinstance(message, Insert):
            assert relation is not None
            seen.append(dict(zip((column.name for column in relation.columns), message.values, strict=True)))
    assert seen == [{"a": "1", "b": "one"}, {"c": "2", "b": "two"}, {"c": "three", "a": "{3,NULL}"}]
