"""The short way of a row gives what the general way gives, or leaves the row to it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.postgres.framing import XLOG_HEADER_BYTES
from connectors.postgres.pgoutput import UNCHANGED, Column, DecodeError, Decoder, Relation, Value
from connectors.router import (
    ColumnValue,
    Header,
    JsonValue,
    Record,
    Route,
    RowError,
    TextFormNeededError,
    TopicByColumn,
    bind,
)
from connectors.unrolled import UNUSUAL, Parts, RowReader, unrolled_reader

OID = 16_400
# Type and well-formed binary values; 999 999 is a type that nobody knows.
KINDS: dict[int, st.SearchStrategy[bytes]] = {
    17: st.binary(max_size=9),
    20: st.binary(min_size=8, max_size=8),
    23: st.binary(min_size=4, max_size=4),
    25: st.text(max_size=9).map(str.encode),
    701: st.floats().map(lambda number: struct.pack(">d", number)),
    1184: st.binary(min_size=8, max_size=8),
    2950: st.binary(min_size=16, max_size=16),
    3802: st.just(b'\x01{"a": 1}') | st.just(b"\x01{}"),
    999_999: st.binary(max_size=3),
}


def encode(values: list[Value], oid: int = OID) -> bytes:
    parts = [b"w", bytes(XLOG_HEADER_BYTES - 1), struct.pack(">cIcH", b"I", oid, b"N", len(values))]
    for value in values:
        if value is None or value is UNCHANGED:
            parts.append(b"n" if value is None else b"u")
        else:
            content = value if isinstance(value, bytes) else str(value).encode()
            parts.append((b"b" if isinstance(value, bytes) else b"t") + struct.pack(">I", len(content)) + content)
    return b"".join(parts)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Route, Relation]:
    types = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
    names = [f"c{number}" for number in range(len(types))]
    column = st.sampled_from(names)
    names_ = st.sampled_from(("id", "ü", "'\"\\"))
    left_out, nulls = st.none() | st.sampled_from(("{}", "0")), st.sampled_from(("leave_out", "keep"))
    headers = st.builds(Header, names_, column, left_out, nulls)
    value = st.builds(ColumnValue, column, st.sampled_from(("keep", "null"))) | st.builds(
        JsonValue, st.lists(column, min_size=1, unique=True).map(tuple)
    )
    route = Route(
        namespace="shop",
        table="outbox",
        topic="events",
        key=draw(column),
        value=draw(value),
        headers=tuple(draw(st.lists(headers, max_size=4))),
    )
    columns = tuple(Column(name, type_oid, -1, False) for name, type_oid in zip(names, types, strict=True))
    return route, Relation(OID, "shop", "outbox", "d", columns)


def value_of(type_oid: int) -> st.SearchStrategy[Value]:
    usual = KINDS[type_oid]
    unusual = st.binary(max_size=5) | st.text(max_size=3) | st.just(UNCHANGED)
    return st.one_of(usual, usual, usual, st.none(), unusual)


def general(route: Route, relation: Relation, message: bytes) -> Record | None:
    try:
        insert = Decoder().decode_insert(message, XLOG_HEADER_BYTES)
        return bind(route, relation).to_record(insert.values)
    except (DecodeError, RowError, TextFormNeededError):
        return None


def short(reader: RowReader, message: bytes) -> Parts | None:
    try:
        return reader(message)
    except UNUSUAL:
        return None


def reader_of(route: Route, relation: Relation) -> RowReader:
    reader = unrolled_reader(route, relation)
    assert reader is not None
    return reader


@given(st.data(), tables())
def test_it_gives_the_same_record_or_leaves_the_row(data: st.DataObject, table: tuple[Route, Relation]) -> None:
    route, relation = table
    row = [data.draw(value_of(column.type_oid)) for column in relation.columns]
    message = encode(row)
    expected = general(route, relation, message)
    parts = short(reader_of(route, relation), message)
    if parts is not None:
        value, key, headers = parts
        assert Record(route.topic, key, value, headers) == expected
    elif expected is not None:
        # Left to the general way although it had an answer: then the row was not sent as rows usually are.
        assert any(isinstance(value, str) or value is UNCHANGED for value in row)


@given(st.data(), tables())
def test_a_row_that_is_cut_off_or_too_long_is_left(data: st.DataObject, table: tuple[Route, Relation]) -> None:
    route, relation = table
    message = encode([data.draw(KINDS[column.type_oid] | st.none()) for column in relation.columns])
    reader = reader_of(route, relation)
    assert all(short(reader, message[:size]) is None for size in range(XLOG_HEADER_BYTES, len(message)))
    assert short(reader, message + b"n") is None


@pytest.mark.parametrize("message", [encode([b"k"], oid=OID + 1), encode([b"k", b"more"]), encode([])])
def test_a_row_of_another_shape_is_left(message: bytes) -> None:
    route = Route(namespace="shop", table="outbox", topic="events", key="c0", value=ColumnValue("c0"))
    relation = Relation(OID, "shop", "outbox", "d", (Column("c0", 25, -1, False),))
    assert short(reader_of(route, relation), encode([b"k"])) == (b"k", b"k", [])
    assert short(reader_of(route, relation), message) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": TopicByColumn("c0", ("events",))},
        {"timestamp": "c0"},
        {"value": ColumnValue("c0", empty="blank_text_null")},
    ],
)
def test_a_route_that_does_more_than_usual_is_left(changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"topic": "events", "key": "c0", "value": ColumnValue("c0")}
    route = Route(namespace="shop", table="outbox", **{**usual, **changes})
    relation = Relation(OID, "shop", "outbox", "d", (Column("c0", 25, -1, False),))
    assert unrolled_reader(route, relation) is None


def test_a_route_that_names_a_missing_column_is_left() -> None:
    route = Route(namespace="shop", table="outbox", topic="events", key="gone", value=ColumnValue("c0"))
    assert unrolled_reader(route, Relation(OID, "shop", "outbox", "d", (Column("c0", 25, -1, False),))) is None
