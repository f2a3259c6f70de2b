"""Tables of a stream: bound when a row needs it, anew when their shape changes."""

from __future__ import annotations

import pytest

from connectors.errors import TransientError
from connectors.postgres.pgoutput import Column, Delete, Relation
from connectors.route import ColumnValue, Route
from connectors.router import RouteError, Router
from connectors.tables import Tables

OID = 16_400
ROUTE = Route(namespace="shop", table="outbox", topic="events", key="owner", value=ColumnValue("body"))


def oid(number: int) -> bytes:
    return number.to_bytes(4, "big")


def relation(*columns: str, table: str = "outbox", number: int = OID) -> Relation:
    return Relation(number, "shop", table, "d", tuple(Column(name, 25, -1, False) for name in columns))


@pytest.fixture
def tables() -> Tables:
    return Tables(Router([ROUTE]))


def test_a_routed_table_has_a_topic_and_a_short_way(tables: Tables) -> None:
    tables.describe(relation("owner", "body"))
    table = tables.of_row(oid(OID))
    assert table is not None
    assert table.topic == "events"
    assert table.read is not None
    assert tables.of_row(oid(OID)) is table


def test_a_new_shape_counts_from_where_it_is_described(tables: Tables) -> None:
    tables.describe(relation("owner", "body"))
    before = tables.of_row(oid(OID))
    tables.describe(relation("body", "note", "owner"))
    after = tables.of_row(oid(OID))
    assert before is not None
    assert after is not None
    row = b"w" + bytes(24) + b"I" + oid(OID) + b"N\0\3" + b"b\0\0\0\1B" + b"n" + b"b\0\0\0\1O"
    assert after.read is not None
    assert after.read(row) == (b"B", b"O", [])
    assert before.read is not None
    assert before.read(row) is None


def test_a_shape_that_does_not_fit_matters_only_to_a_row_that_is_published(tables: Tables) -> None:
    tables.describe(relation("other"))
    with pytest.raises(RouteError, match="no column 'owner'"):
        tables.of_row(oid(OID))


def test_other_tables_have_none(tables: Tables) -> None:
    tables.describe(relation("owner", table="orders"))
    assert tables.of_row(oid(OID)) is None


def test_changes_that_the_route_does_not_take_have_none(tables: Tables) -> None:
    tables.describe(relation("owner", "body"))
    assert tables.of_change(Delete(OID, [None, None], True)) is None
    assert tables.of_change(Delete(OID + 1, [None], True)) is None


def test_a_row_of_a_table_that_was_never_described_is_an_error_of_the_stream(tables: Tables) -> None:
    with pytest.raises(TransientError, match="had not described"):
        tables.of_row(oid(OID))
