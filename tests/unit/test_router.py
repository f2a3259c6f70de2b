"""Rows to records by configuration alone."""

from __future__ import annotations

import json
import struct

import pytest

from connectors.postgres.pgoutput import UNCHANGED, Column, Delete, Relation, Update, Value
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
    TopicByColumn,
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


MOMENT = 1184
BY_KIND = TopicByColumn("note", ("shop.order", "shop.invoice"), "(?P<kind>[a-z]+)", "shop.${kind}")


def test_the_topic_may_follow_from_a_column() -> None:
    found = bound(topic=BY_KIND)
    row = list(BINARY_ROW)
    for kind, topic in (("order", "shop.order"), ("invoice", "shop.invoice"), (b"order", "shop.order")):
        row[3] = kind
        assert found.to_record(row).topic == topic


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("refund", "column 'note' is 'refund', which gives none of the route's topics"),
        (None, "topic column 'note' is NULL"),
        (UNCHANGED, "topic column 'note' is unchanged"),
    ],
)
def test_a_row_for_another_topic_is_refused_and_no_more(kind: Value, reason: str) -> None:
    row = list(BINARY_ROW)
    row[3] = kind
    with pytest.raises(RowError, match=reason):
        bound(topic=BY_KIND, headers=()).to_record(row)


def test_a_topic_pattern_that_cannot_be_used_is_an_error_of_the_route() -> None:
    with pytest.raises(RouteError, match="no regular expression"):
        bound(topic=TopicByColumn("note", ("a",), "("))


def test_null_may_be_a_header_without_a_value() -> None:
    headers = bound(headers=(Header("note", "note", null="keep"), Header("seq", "seq"))).to_record(BINARY_ROW).headers
    assert headers == [("note", None), ("seq", b"7")]


@pytest.mark.parametrize(("body", "value"), [(b"", None), ("\\x", None), (None, None), (b"\0", b"\0")])
def test_an_empty_value_may_be_a_tombstone(body: Value, value: bytes | None) -> None:
    assert bound(value=ColumnValue("body", empty="null")).to_record([*BINARY_ROW[:5], body]).value == value


@pytest.mark.parametrize(
    ("note", "value"), [("", None), (" \n\t\x01", None), (" x", b" x"), ("\u00a0", "\u00a0".encode())]
)
def test_a_blank_text_may_be_a_tombstone(note: str, value: bytes | None) -> None:
    found = bound(value=ColumnValue("note", empty="blank_text_null"), headers=())
    for cell in (note, note.encode()):
        assert found.to_record([*BINARY_ROW[:3], cell, *BINARY_ROW[4:]]).value == value


def test_bytes_are_no_blank_text() -> None:
    found = bound(value=ColumnValue("body", empty="blank_text_null"))
    assert [found.to_record([*BINARY_ROW[:5], body]).value for body in (b"", b" ", None)] == [b"", b" ", None]


def moment_relation() -> Relation:
    columns = [*relation(*COLUMNS).columns, Column("at", MOMENT, -1, False)]
    return Relation(7, "shop", "outbox", "d", tuple(columns))


def test_a_record_may_carry_the_moment_of_a_column() -> None:
    found = Router([route(timestamp="at")]).bind(moment_relation())
    assert found is not None
    assert found.to_record([*BINARY_ROW, struct.pack(">q", 1_999)]).timestamp_ms == 946_684_800_001
    assert found.to_record([*TEXT_ROW, "2000-01-01 00:00:00.001999+00"]).timestamp_ms == 946_684_800_001
    assert found.to_record([*BINARY_ROW, None]).timestamp_ms is None
    with pytest.raises(RowError, match="a column value cannot be read"):
        found.to_record([*TEXT_ROW, "infinity"])


def test_a_column_that_holds_no_moment_is_an_error_of_the_route() -> None:
    with pytest.raises(RouteError, match=r"column 'note' of table shop\.outbox cannot be a record's timestamp"):
        bound(timestamp="note")


@pytest.mark.parametrize("change", [Update(7, BINARY_ROW, None, False), Delete(7, BINARY_ROW, False)])
def test_changes_are_ignored_published_or_refused_by_policy(change: Update | Delete) -> None:
    policy = "updates" if isinstance(change, Update) else "deletes"
    for decision in ("ignore", "publish", "refuse"):
        router = Router([route(**{policy: decision})])
        assert router.takes(relation(*COLUMNS), change) == (decision != "ignore")
        found = router.bind(relation(*COLUMNS))
        assert found is not None
        changed = found.of_change(change)
        if changed is None:
            assert decision == "ignore"
            continue
        by, values = changed
        if decision == "refuse":
            with pytest.raises(RowError, match=rf"{policy} of table shop\.outbox are refused"):
                by.to_record(values)
            assert by.identify(values) == found.identify(values)
        else:
            expected = RECORD if policy == "updates" else Record(RECORD.topic, RECORD.key, None, RECORD.headers)
            assert by.to_record(values) == expected


def test_an_update_fills_what_was_not_sent_from_the_whole_old_row() -> None:
    found = bound(updates="publish")
    sent = [*BINARY_ROW[:5], UNCHANGED]
    by, values = found.of_change(Update(7, sent, BINARY_ROW, False)) or (found, [])
    assert by.to_record(values) == RECORD
    by, values = found.of_change(Update(7, sent, BINARY_ROW, True)) or (found, [])
    with pytest.raises(RowError, match="value column 'body' is unchanged"):
        by.to_record(values)


def test_a_deletion_needs_the_key_in_the_replica_identity() -> None:
    found = bound(deletes="publish")
    by, values = found.of_change(Delete(7, [BINARY_ROW[0], None, None, None, None, None], True)) or (found, [])
    with pytest.raises(RowError, match="key column 'owner' is NULL"):
        by.to_record(values)


def test_topics_and_columns_of_a_route_are_all_that_it_can_use() -> None:
    assert route(topic=BY_KIND).topics == ("shop.order", "shop.invoice")
    assert route(headers=(), topic=BY_KIND, timestamp="at").columns == ("owner", "body", "note", "at")


@pytest.mark.parametrize("changes", [{"updates": "publish"}, {"updates": "refuse"}, {"deletes": "publish"}])
def test_later_rows_wait_only_where_rows_are_never_changed(changes: dict[str, object]) -> None:
    with pytest.raises(RouteError, match="later rows can wait only where updates and deletes are ignored"):
        Router([route(later_rows_of_key="wait", **changes)])
    Router([route(later_rows_of_key="wait")])
