"""Debezium's own property names as a route; what would change a record is refused, never ignored."""

from __future__ import annotations

import pytest

from connectors.debezium.profile import event_router_route
from connectors.errors import ConfigurationError
from connectors.route import ColumnValue, Header, TopicByColumn


def test_without_properties_it_is_debeziums_default_table() -> None:
    route = event_router_route("public", "outbox", {}, topics=["outbox.event.order"])
    assert route.topic == TopicByColumn(
        column="aggregatetype",
        topics=("outbox.event.order",),
        pattern="(?P<routedByValue>.*)",
        replacement="outbox.event.${routedByValue}",
    )
    assert (route.key, route.value, route.id) == ("aggregateid", ColumnValue("payload"), "id")
    assert route.headers == (Header("id", "id", null="keep"),)
    assert (route.updates, route.deletes) == ("ignore", "ignore")


def test_properties_may_come_with_the_prefix_of_a_connectors_file() -> None:
    properties = {
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.key": "owner",
        "transforms.outbox.table.field.event.id": "message",
        "transforms.outbox.table.fields.additional.placement": "seq:header, note:header:remark",
        "transforms.outbox.table.op.invalid.behavior": "fatal",
        "transforms.outbox.route.tombstone.on.empty.payload": "true",
        "transforms.outbox.route.topic.regex": ".*",
        "transforms.outbox.route.topic.replacement": "shop.events",
        "transforms.outbox.table.expand.json.payload": "false",
    }
    route = event_router_route("shop", "outbox", properties, snapshot_order=["n"], later_rows_of_key="wait")
    assert (route.name, route.topic, route.key, route.id) == ("shop.outbox", "shop.events", "owner", "message")
    assert route.headers == (
        Header("id", "message", null="keep"),
        Header("seq", "seq", null="keep"),
        Header("remark", "note", null="keep"),
    )
    assert route.value == ColumnValue("payload", empty="blank_text_null")
    assert (route.updates, route.deletes) == ("refuse", "ignore")
    assert (route.snapshot_order, route.later_rows_of_key) == (("n",), "wait")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"table.expand.json.payload": "true"}, "table.expand.json.payload = 'true' is not supported"),
        ({"tracing.span.context.field": "x"}, "tracing.span.context.field is not supported"),
        ({"table.fields.additional.placement": "a:envelope"}, "'a:envelope' is not supported, only headers"),
        ({"table.fields.additional.placement": "a:partition"}, "'a:partition' is not supported, only headers"),
        ({"route.tombstone.on.empty.payload": "maybe"}, "route.tombstone.on.empty.payload is one of true, false"),
        ({"table.op.invalid.behavior": "ignore"}, "table.op.invalid.behavior is one of warn, error, fatal"),
        ({}, "list every topic that rows may go to"),
    ],
)
def test_what_is_not_supported_is_named(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        event_router_route("public", "outbox", properties, topics=["a"] if properties else ())
