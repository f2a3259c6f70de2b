"""Every malformed argument is refused by a named error, and nothing has changed after it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
import pytest

from pipeline.admission import (
    AdmissionError,
    DisabledDestination,
    InvalidArgument,
    PayloadTooLarge,
    UnknownDestination,
    admit_sync,
)
from tests.support.ledger_rows import add_destination, ledger, scalar

EVENT: dict[str, Any] = {"event_id": "e", "event_type": "t", "payload": b"x", "destinations": ["acme"]}


@pytest.fixture
def connection(rolled_back: psycopg.Connection) -> psycopg.Connection:
    add_destination(rolled_back)
    add_destination(rolled_back, "off", enabled=False)
    return rolled_back


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"event_id": ""}, InvalidArgument, "event_id"),
        ({"event_id": "é" * 257}, InvalidArgument, "event_id"),
        ({"event_id": "nul\0"}, InvalidArgument, "NUL"),
        ({"event_id": "\ud800"}, InvalidArgument, "Unicode"),
        ({"event_type": ""}, InvalidArgument, "event_type"),
        ({"event_type": "media.*"}, InvalidArgument, "event_type"),
        ({"event_type": "a\nb"}, InvalidArgument, "event_type"),
        ({"event_type": "t" * 257}, InvalidArgument, "event_type"),
        ({"content_type": ""}, InvalidArgument, "content_type"),
        ({"content_type": "text/plain\r\nx-evil: 1"}, InvalidArgument, "content_type"),
        ({"content_type": "text/żółć"}, InvalidArgument, "content_type"),
        ({"payload": b"x" * 262_145}, PayloadTooLarge, "262145 bytes, the limit is 262144"),
        ({"destinations": []}, InvalidArgument, "at least one destination"),
        ({"destinations": ["acme", None]}, InvalidArgument, "NULL"),
        ({"destinations": "acme"}, InvalidArgument, "one string"),
        ({"destinations": ["acme", "nobody"]}, UnknownDestination, '"nobody"'),
        ({"destinations": ["acme", "off"]}, DisabledDestination, '"off"'),
        ({"deliver_at": datetime(2030, 1, 1)}, InvalidArgument, "offset"),  # noqa: DTZ001 - that is the point
        ({"headers": {"bad name": "v"}}, InvalidArgument, "bad name"),
        ({"headers": {"": "v"}}, InvalidArgument, "HTTP token"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, InvalidArgument, "twice"),
        ({"headers": {"Webhook-Id": "1"}}, InvalidArgument, "set by the sender"),
        ({"headers": {"Idempotency-Key": "1"}}, InvalidArgument, "set by the sender"),
        ({"headers": {"host": "evil"}}, InvalidArgument, "set by the sender"),
        ({"headers": {"x-a": "line\r\nx-evil: 1"}}, InvalidArgument, "control character"),
        ({"headers": {"x-a": "tab\t"}}, InvalidArgument, "control character"),
        ({"headers": {"x-a": "\x7f"}}, InvalidArgument, "control character"),
        ({"headers": {"x-a": "ż"}}, InvalidArgument, "outside ASCII"),
        ({"headers": {"x-a": "nul\0"}}, InvalidArgument, "Unicode escape"),
        ({"headers": {"x-a": 7}}, InvalidArgument, "string"),
        ({"headers": {"x-a": "v" * 4_097}}, InvalidArgument, "4096"),
        ({"headers": {f"x-{n}": "v" for n in range(33)}}, InvalidArgument, "at most 32"),
        # Each is small enough, and so is their number; quotes take two bytes in JSON.
        ({"headers": {f"x-{n}": '"' * 4_096 for n in range(8)}}, InvalidArgument, "32768 bytes together"),
    ],
)
def test_malformed_argument_is_named_and_nothing_changes(
    connection: psycopg.Connection, changes: dict[str, Any], error: type[AdmissionError], message: str
) -> None:
    before = ledger(connection)
    with pytest.raises(error, match=message), connection.transaction():
        admit_sync(connection, **{**EVENT, **changes})
    assert ledger(connection) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("null, 't', 'x'::bytea", "event_id"),
        ("'e', null, 'x'::bytea", "event_type"),
        ("'e', 't', null", "payload must not be NULL"),
        ("'e', 't', 'x'::bytea, null", "content_type"),
        ("'e', 't', 'x'::bytea, deliver_at => 'infinity'", "deliver_at"),
        ("'e', 't', 'x'::bytea, deliver_at => '20000-01-01'", "deliver_at"),
        ("'e', 't', 'x'::bytea, deliver_at => '0044-03-15 BC'", "deliver_at"),
        ("'e', 't', 'x'::bytea, deliver_at => now() + interval '11 years'", "deliver_at"),
        ("'e', 't', 'x'::bytea, headers => null", "JSON object"),
        ("'e', 't', 'x'::bytea, headers => '[1]'", "JSON object"),
    ],
)
def test_nulls_and_infinities_from_sql_are_refused(
    connection: psycopg.Connection, arguments: str, message: str
) -> None:
    before = ledger(connection)
    with pytest.raises(psycopg.Error, match=message) as refused, connection.transaction():
        connection.execute(f"select outrider.admit({arguments})".encode())
    assert refused.value.sqlstate == "OU005"
    assert ledger(connection) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": b"x" * 262_144},
        {"payload": b""},
        {"event_id": "e" * 512},
        {"event_id": "a:b\n\t żółć"},
        {"headers": {"x-a": " !~", "x-b": ""}},
        {"headers": {f"x-{n}": "v" for n in range(32)}},
    ],
)
def test_what_lies_just_within_the_limits_is_admitted(connection: psycopg.Connection, changes: dict[str, Any]) -> None:
    assert [d.created for d in admit_sync(connection, **{**EVENT, **changes})] == [True]


def test_the_limits_are_settings_of_the_ledger(connection: psycopg.Connection) -> None:
    connection.execute("update outrider.ledger_setting set payload_bytes_max = 3, destinations_max = 1")
    with pytest.raises(PayloadTooLarge, match="4 bytes, the limit is 3"), connection.transaction():
        admit_sync(connection, **{**EVENT, "payload": b"four"})
    add_destination(connection, "second")
    with pytest.raises(InvalidArgument, match="at most 1 destinations"), connection.transaction():
        admit_sync(connection, **{**EVENT, "destinations": ["acme", "second"]})


def test_an_event_of_before_may_be_repeated_for_a_destination_that_is_disabled_now(
    connection: psycopg.Connection,
) -> None:
    admit_sync(connection, **EVENT)
    connection.execute("update outrider.destination set enabled = false")
    assert [d.created for d in admit_sync(connection, **EVENT)] == [False]


def test_a_refused_call_leaves_the_callers_transaction_usable_behind_a_savepoint(
    connection: psycopg.Connection,
) -> None:
    with pytest.raises(UnknownDestination), connection.transaction():
        admit_sync(connection, **{**EVENT, "destinations": ["nobody"]})
    assert admit_sync(connection, **EVENT)[0].created
    assert scalar(connection, "select count(*) from outrider.event") == 1
