"""Rows to records by configuration alone."""

from __future__ import annotations

import json
import struct

import pytest

from connectors.postgres.pgoutput import UNCHANGED, Column, Relation, Value
from connectors.router import (
    BoundRoute,
    ColumnValue,
    Header,
    JsonValue,
    Record,
    Route,
    RouteError,
    Router,
    RowError,
    RowIdentity,
    TextFormNeededError,
)

TYPES = {"id": 2950, "seq": 23, "owner": 25, "note": 25, "extra": 3802, "body": 17, "shape": 999_999}


def relation(*names: str) -> Relation:
    return Relation(7, "shop", "outbox", "d", tuple(Column(name, TYPES[name], -1, False) for name in names))


def route(**changes: object) -> Route:
    values: dict[str, object] = {
        "namespace": "shop",
        "table": "outbox",
        "topic": "shop.events",
        "key": "owner",
        "value": ColumnValue("body"),
        "headers": (Header("id", "id"), Header("seq", "seq"), Header("note", "note"), Header("extra", "extra", "{}")),
        **changes,
    }
    return Route(**values)  # type: ignore[arg-type]  # a test's table of arguments


COLUMNS = ("id", "seq", "owner", "note", "extra", "body")
BINARY_ROW: list[Value] = [b"\x12" * 16, struct.pack(">i", 7), b"acme", None, b"\x01{}", b"\x00\xffraw"]
TEXT_ROW: list[Value] = ["12121212-1212-1212-1212-121212121212", "7", "acme", None, "{}", "\\x00ff726177"]
RECORD = Record(
    "shop.events", b"acme", b"\x00\xffraw", [("id", b"12121212-1212-1212-1212-121212121212"), ("seq", b"7")]
)


def bound(*columns: str, **changes: object) -> BoundRoute:
    found = Router([route(**changes)]).bind(relation(*(columns or COLUMNS)))
    assert found is not None
    return found


@pytest.mark.parametrize("row", [BINARY_ROW, TEXT_ROW])
def test_both_forms_of_a_row_give_the_same_record(row: list[Value]) -> None:
    assert bound().to_record(row) == RECORD


def test_null_leaves_a_header_out_and_so_does_the_text_that_says_so() -> None:
    row: list[Value] = [b"\x12" * 16, None, b"acme", "noted", b'\x01{"a": "b"}', b""]
    assert bound().to_record(row).headers[1:] == [("note", b"noted"), ("extra", b'{"a": "b"}')]


def test_columns_are_found_by_name_after_they_were_added_and_reordered() -> None:
    order = ("body", "shape", "extra", "owner", "note", "seq", "id")
    values = dict(zip(COLUMNS, BINARY_ROW, strict=True)) | {"shape": "(1,2)"}
    assert bound(*order).to_record([values[name] for name in order]) == RECORD


def test_a_column_that_the_route_needs_and_the_table_lacks_is_named() -> None:
    with pytest.raises(RouteError, match=r"shop\.outbox has no column 'body' \(it has: id, owner\)"):
        bound("id", "owner", headers=())


def test_a_json_value_holds_the_listed_columns_in_order() -> None:
    record = bound(value=JsonValue(("seq", "note", "body", "extra"))).to_record(BINARY_ROW)
    assert record.value == b'{"seq":7,"note":null,"body":"AP9yYXc=","extra":{}}'
    json.loads(record.value)


def test_a_null_value_column_is_a_null_value() -> None:
    assert bound().to_record([*BINARY_ROW[:5], None]).value is None


@pytest.mark.parametrize(
    ("index", "value", "reason"),
    [
        (2, None, "key column 'owner' is NULL"),
        (2, UNCHANGED, "key column 'owner' is unchanged"),
        (5, UNCHANGED, "value column 'body' is unchanged"),
        (3, UNCHANGED, "header 'note' is unchanged"),
        (0, b"short", "a column value cannot be read"),
        (5, "no hex", "a column value cannot be read"),
    ],
)
def test_a_row_that_cannot_be_published_says_why(index: int, value: Value, reason: str) -> None:
    row = list(BINARY_ROW)
    row[index] = value
    with pytest.raises(RowError, match=reason):
        bound().to_record(row)


def test_a_row_with_too_few_values_is_an_error_of_that_row() -> None:
    with pytest.raises(RowError, match="a row of 2 values"):
        bound().to_record(BINARY_ROW[:2])


def test_a_type_with_an_unknown_binary_form_asks_for_text() -> None:
    shaped = bound("owner", "body", "shape", headers=(Header("shape", "shape"),))
    assert shaped.to_record([b"acme", b"", "(1,2)"]).headers == [("shape", b"(1,2)")]
    with pytest.raises(TextFormNeededError):
        shaped.to_record([b"acme", b"", b"\0\0\0\1"])


def test_other_tables_are_not_routed() -> None:
    router = Router([route()])
    assert router.bind(Relation(8, "shop", "orders", "d", ())) is None
    assert router.bind(Relation(8, "other", "outbox", "d", ())) is None


def test_two_routes_of_one_table_are_refused() -> None:
    with pytest.raises(RouteError, match="two routes"):
        Router([route(), route(topic="elsewhere")])


def test_a_route_names_every_column_that_it_reads_once() -> None:
    assert route(value=JsonValue(("owner", "seq"))).columns == ("owner", "seq", "id", "note", "extra")


@pytest.mark.parametrize("row", [BINARY_ROW, TEXT_ROW])
def test_a_row_is_identified_by_key_id_and_what_orders_it(row: list[Value]) -> None:
    identity = bound(id="id", snapshot_order=("seq",)).identify(row)
    assert identity == RowIdentity(
        key=b"acme",
        id="12121212-1212-1212-1212-121212121212",
        columns={"seq": "7", "id": "12121212-1212-1212-1212-121212121212"},
    )


def test_what_cannot_be_read_is_missing_in_an_identity() -> None:
    found = bound(id="id", snapshot_order=("seq",))
    assert found.identify([b"short", b"\0\0\0\7", None]) == RowIdentity(key=None, id=None, columns={"seq": "7"})
    assert found.identify([]) == RowIdentity(key=None, id=None, columns={})


def test_a_route_reads_what_identifies_its_rows() -> None:
    assert route(id="row", snapshot_order=("at", "row")).columns[-2:] == ("at", "row")
