"""Without named destinations an event goes to those subscribed to its type at the time of its first admission."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pipeline.admission import AdmittedDelivery, InvalidArgument, admit_sync
from tests.support.ledger_rows import add_destination, ledger, scalar


@pytest.fixture
def connection(rolled_back: psycopg.Connection) -> psycopg.Connection:
    return rolled_back


def subscribe(connection: psycopg.Connection, destination_id: str, *event_types: str, **settings: Any) -> None:
    add_destination(connection, destination_id, **settings)
    for event_type in event_types:
        connection.execute("insert into outrider.subscription values (%s, %s)", (destination_id, event_type))


def admit(connection: psycopg.Connection, event_type: str, **arguments: Any) -> list[AdmittedDelivery]:
    return admit_sync(connection, event_id="e", event_type=event_type, payload=b"x", **arguments)


@pytest.mark.parametrize(
    ("event_type", "destinations"),
    [
        ("media.processed", ["all", "exact", "prefix"]),
        ("media.deleted", ["all", "prefix"]),
        ("media.video.deleted", ["all", "prefix"]),
        ("media", ["all"]),
        ("mediaX", ["all"]),
        ("media.", ["all", "prefix"]),
        ("order.paid", ["all"]),
        ("order_paid", ["all", "wild"]),
        ("orderXpaid", ["all"]),
    ],
)
def test_event_goes_to_exact_prefix_and_all(
    connection: psycopg.Connection, event_type: str, destinations: list[str]
) -> None:
    subscribe(connection, "exact", "media.processed")
    subscribe(connection, "prefix", "media.*", "media.processed")
    subscribe(connection, "all", "*")
    # Characters that patterns of SQL would take for wild ones.
    subscribe(connection, "wild", "order_paid", "a%b")
    subscribe(connection, "nothing")
    assert [d.destination_id for d in admit(connection, event_type)] == destinations


def test_event_without_subscribers_is_kept_and_goes_nowhere(connection: psycopg.Connection) -> None:
    assert admit(connection, "media.processed") == []
    assert scalar(connection, "select count(*) from outrider.event") == 1


def test_disabled_subscriber_keeps_its_event_until_it_is_enabled(connection: psycopg.Connection) -> None:
    subscribe(connection, "off", "*", enabled=False)
    assert [(d.destination_id, d.state, d.created) for d in admit(connection, "t")] == [("off", "pending", True)]
    assert scalar(connection, "select waiting_reason from outrider.delivery") == "destination_disabled"
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 0


def test_repeated_call_resolves_nothing_anew(connection: psycopg.Connection) -> None:
    subscribe(connection, "early", "*")
    admit(connection, "t")
    subscribe(connection, "late", "*")
    connection.execute("delete from outrider.subscription where destination_id = 'early'")
    before = ledger(connection)

    assert [(d.destination_id, d.created) for d in admit(connection, "t")] == [("early", False)]
    assert ledger(connection) == before


def test_event_that_was_named_first_is_resolved_when_subscribers_are_asked_for(connection: psycopg.Connection) -> None:
    add_destination(connection, "named")
    subscribe(connection, "subscribed", "*")
    admit(connection, "t", destinations=["named"])
    assert [(d.destination_id, d.created) for d in admit(connection, "t")] == [("named", False), ("subscribed", True)]


def test_too_many_subscribers_are_refused_and_nothing_changes(connection: psycopg.Connection) -> None:
    connection.execute("update outrider.ledger_setting set destinations_max = 2")
    for name in ("a", "b", "c"):
        subscribe(connection, name, "*")
    before = ledger(connection)
    with pytest.raises(InvalidArgument, match="at most 2 destinations, 3 are subscribed"), connection.transaction():
        admit(connection, "t")
    assert ledger(connection) == before
