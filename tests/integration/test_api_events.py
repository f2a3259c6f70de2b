"""``POST /v1/events``: what is answered, what is committed, and what receivers will get."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import psycopg
import pytest

from pipeline.admission.cloudevents import event_identity
from pipeline.core.ids import delivery_identity
from tests.support.api_world import EVENT, Client, api, caller, make_key, structured
from tests.support.ledger_rows import add_destination, connect, ledger, scalar

STRUCTURED = {"content-type": "application/cloudevents+json"}
EVENT_ID = event_identity("/media", "asset-42-processed-1")


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        add_destination(connection, "off", enabled=False)
        connection.execute("insert into outrider.subscription values ('acme', 'media.*')")
        yield connection


@pytest.fixture
async def client(database: str, role_dsns: dict[str, str], connection: psycopg.Connection) -> AsyncIterator[Client]:
    async with api(role_dsns["api"]) as url, caller(url, make_key(database)) as client:
        yield client


async def test_an_event_is_committed_when_it_is_answered(client: Client, connection: psycopg.Connection) -> None:
    reply = await client.admit(b'{ "asset" : 42 }')

    delivery_id = delivery_identity(EVENT_ID, "acme")
    assert reply.status == 202
    assert reply.body == {
        "event_id": EVENT_ID,
        "accepted": 1,
        "existing": 0,
        "deliveries": [
            {"delivery_id": delivery_id, "destination_id": "acme", "created": True, "state": "enqueued"},
        ],
    }
    row = connection.execute(
        "select payload, content_type, event_type, headers from outrider.dispatch_outbox where delivery_id = %s",
        (delivery_id,),
    ).fetchone()
    assert row == (
        b'{ "asset" : 42 }',
        "application/json",
        "media.processed",
        {
            "ce-specversion": "1.0",
            "ce-id": "asset-42-processed-1",
            "ce-source": "/media",
            "ce-type": "media.processed",
        },
    )


async def test_the_same_request_again_changes_nothing_and_says_so(
    client: Client, connection: psycopg.Connection
) -> None:
    first = await client.admit()
    before = ledger(connection)
    again = await client.admit()
    assert (again.status, again.body["accepted"], again.body["existing"]) == (202, 0, 1)
    assert again.body["deliveries"][0]["delivery_id"] == first.body["deliveries"][0]["delivery_id"]
    assert again.body["deliveries"][0]["created"] is False
    assert ledger(connection) == before


async def test_the_same_identity_with_other_bytes_is_a_conflict(client: Client, connection: psycopg.Connection) -> None:
    await client.admit()
    before = ledger(connection)
    for reply in (await client.admit(b"other"), await client.admit(type="media.other")):
        assert (reply.status, reply.problem) == (409, "identity-conflict")
        assert reply.body["field"] == "id"
        assert reply.body["mend"]
    assert ledger(connection) == before


async def test_ids_of_two_sources_are_two_events(client: Client) -> None:
    first = await client.admit(source="/a", id_="b/c")
    second = await client.admit(b"other", source="/a/b", id_="c")
    assert (first.status, second.status) == (202, 202)
    assert first.body["event_id"] != second.body["event_id"]


@pytest.mark.parametrize("body", [b"", b"\x00\xff\xfe", b'{"a":1}\r\n', "żółć".encode(), bytes(range(256)) * 1024])
async def test_binary_mode_carries_any_bytes(client: Client, connection: psycopg.Connection, body: bytes) -> None:
    assert (await client.admit(body)).status == 202
    assert scalar(connection, "select payload from outrider.event") == body


@pytest.mark.parametrize(
    ("members", "payload", "content_type"),
    [
        ({"data": {"a": 1}}, b'{"a": 1}', "application/json"),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text", "text/plain"),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": None}, b"null", "application/json"),
        ({"data": [1.50, 2]}, b"[1.5, 2]", "application/json"),
        ({"data": {}, "datacontenttype": "application/vnd.x+json"}, b"{}", "application/vnd.x+json"),
        ({"data_base64": base64.b64encode(b"\x00\xff").decode()}, b"\x00\xff", "application/octet-stream"),
        ({"data_base64": "", "datacontenttype": "image/png"}, b"", "image/png"),
        ({}, b"", "application/json"),
    ],
)
async def test_structured_mode_gives_the_bytes_of_its_data(
    client: Client, connection: psycopg.Connection, members: dict[str, object], payload: bytes, content_type: str
) -> None:
    document = json.dumps(structured("e", **members))
    reply = await client.ask("POST", "/v1/events", data=document, headers=STRUCTURED)
    assert reply.status == 202, reply
    row = connection.execute("select payload, content_type from outrider.event").fetchone()
    assert row == (payload, content_type)


async def test_the_json_text_of_data_is_kept_as_it_was_written(client: Client, connection: psycopg.Connection) -> None:
    data = b'{ "n" : 1.0e2,\n "s":"\\u017c", "n":2 }'
    document = b'{"data":' + data + b',"specversion":"1.0","id":"e","source":"/s","type":"media.x"}'
    assert (await client.ask("POST", "/v1/events", data=document, headers=STRUCTURED)).status == 202
    assert scalar(connection, "select payload from outrider.event") == data


async def test_both_modes_give_one_identity_and_the_same_headers(
    client: Client, connection: psycopg.Connection
) -> None:
    subject = 'żó "quoted" 100%'
    binary = await client.admit(b'{"a": 1}', id_="e", subject=quote(subject), tenant="7", flag="true")
    document = json.dumps(structured("e", data={"a": 1}, subject=subject, tenant=7, flag=True, none=None))
    again = await client.ask("POST", "/v1/events", data=document, headers=STRUCTURED)
    assert (binary.body["accepted"], again.body["accepted"], again.body["existing"]) == (1, 0, 1)
    headers = scalar(connection, "select headers from outrider.event")
    assert headers["ce-subject"] == "%C5%BC%C3%B3%20%22quoted%22%20100%25"
    assert (headers["ce-tenant"], headers["ce-flag"]) == ("7", "true")
    assert "ce-none" not in headers


async def test_destinations_are_those_that_are_named(client: Client, connection: psycopg.Connection) -> None:
    name = "a &=,;%/?#1"
    add_destination(connection, name)
    reply = await client.admit(query=f"?destination=acme&destination={quote(name, safe='')}&destination=acme")
    assert reply.body["accepted"] == 2
    assert {delivery["destination_id"] for delivery in reply.body["deliveries"]} == {"acme", name}


async def test_nobody_subscribed_is_an_event_without_deliveries(client: Client) -> None:
    reply = await client.admit(type="other.kind")
    assert (reply.status, reply.body["accepted"], reply.body["deliveries"]) == (202, 0, [])


async def test_a_subscriber_that_is_disabled_keeps_its_event(client: Client, connection: psycopg.Connection) -> None:
    connection.execute("insert into outrider.subscription values ('off', '*')")
    reply = await client.admit()
    assert {d["destination_id"]: d["state"] for d in reply.body["deliveries"]} == {"acme": "enqueued", "off": "pending"}
    assert scalar(connection, "select waiting_reason from outrider.delivery where destination_id = 'off'") == (
        "destination_disabled"
    )


async def test_an_event_may_be_scheduled(client: Client, connection: psycopg.Connection) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    query = f"?deliver_at={quote(moment.isoformat())}"
    reply = await client.admit(query=query)
    assert reply.body["deliveries"][0]["state"] == "pending"
    row = connection.execute("select next_attempt_at, waiting_reason from outrider.delivery").fetchone()
    assert row == (moment, "scheduled")
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 0
    assert (await client.admit(query=query)).body["existing"] == 1
    assert (await client.admit()).status == 409


async def test_an_event_of_a_transaction_is_the_same_event_over_http(
    client: Client, connection: psycopg.Connection
) -> None:
    connection.execute(
        "select outrider.admit('asset:42', 'media.processed', '{}'::bytea, destinations => array['acme'])"
    )
    reply = await client.admit(b"{}", query="?event_id=asset%3A42&destination=acme")
    assert (reply.status, reply.body["event_id"], reply.body["accepted"], reply.body["existing"]) == (
        202,
        "asset:42",
        0,
        1,
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?destination=nobody", (422, "unknown-destination", "destination")),
        ("?destination=acme&destination=off", (422, "disabled-destination", "destination")),
        ("?destination=", (422, "unknown-destination", "destination")),
        ("?destination=%00", (400, "malformed-request", "destination")),
        ("?destination=%FF", (422, "unknown-destination", "destination")),
        ("?destinations=acme", (400, "malformed-request", "destinations")),
        ("?deliver_at=tomorrow", (400, "malformed-request", "deliver_at")),
        ("?deliver_at=2030-01-01T00:00:00", (400, "malformed-request", "deliver_at")),
        ("?deliver_at=2030-01-01T00:00:00Z&deliver_at=2031-01-01T00:00:00Z", (400, "malformed-request", "deliver_at")),
        ("?event_id=", (400, "malformed-request", "event_id")),
        ("?event_id=" + "e" * 513, (422, "invalid", "id")),
    ],
)
async def test_a_wrong_parameter_is_named_and_nothing_changes(
    client: Client, connection: psycopg.Connection, query: str, expected: tuple[int, str, str]
) -> None:
    before = ledger(connection)
    reply = await client.admit(query=query)
    assert (reply.status, reply.problem, reply.body["field"]) == expected
    assert ledger(connection) == before


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        ({"ce-specversion": "0.3"}, 400, "ce-specversion"),
        ({"ce-specversion": None}, 400, "ce-specversion"),
        ({"ce-id": None}, 400, "ce-id"),
        ({"ce-id": "%00"}, 400, "ce-id"),
        ({"ce-id": "%FF"}, 400, "ce-id"),
        ({"ce-source": ""}, 400, "ce-source"),
        ({"ce-type": None}, 400, "ce-type"),
        ({"ce-type": "media.*"}, 422, "type"),
        ({"ce-type": "t" * 257}, 422, "type"),
        ({"ce-time": "yesterday"}, 400, "ce-time"),
        ({"ce-datacontenttype": "text/plain"}, 400, "ce-datacontenttype"),
        ({"ce-under_score": "x"}, 400, "ce-under_score"),
        ({"ce-x": "v" * 2_049}, 400, "ce-x"),
        ({f"ce-x{n}": "v" for n in range(31)}, 400, "extension attribute"),
        ({"content-type": "application/cloudevents-batch+json"}, 415, "Content-Type"),
        ({"content-type": "application/cloudevents+avro"}, 415, "Content-Type"),
        ({"content-encoding": "gzip"}, 415, "Content-Encoding"),
    ],
)
async def test_a_wrong_header_is_named_and_nothing_changes(
    client: Client, connection: psycopg.Connection, headers: dict[str, str | None], status: int, field: str
) -> None:
    before = ledger(connection)
    sent = {name: value for name, value in {**EVENT, **headers}.items() if value is not None}
    reply = await client.ask("POST", "/v1/events?destination=acme", data=b"{}", headers=sent)
    assert (reply.status, reply.body["field"]) == (status, field), reply
    assert reply.problem
    assert ledger(connection) == before


@pytest.mark.parametrize(
    ("document", "status", "field"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
        (b"[]", 422, None),
        (b"null", 422, None),
        (json.dumps(structured("e", data=1, data_base64="")).encode(), 400, "data_base64"),
        (json.dumps(structured("e", data_base64="*")).encode(), 400, "data_base64"),
        (json.dumps(structured("e", data={}, datacontenttype="text/plain")).encode(), 400, "data"),
        (json.dumps(structured("e", extension={"a": 1})).encode(), 400, "extension"),
        (json.dumps(structured("e", Upper="x")).encode(), 400, "Upper"),
        (json.dumps(structured("")).encode(), 400, "id"),
        (json.dumps(structured("a\0b")).encode(), 400, "id"),
        (json.dumps({"id": "e"}).encode(), 400, "specversion"),
        (json.dumps(structured("e", data="x", datacontenttype="tex\nt")).encode(), 422, "datacontenttype"),
        (b'{"specversion":"1.0","id":"\\ud800","source":"s","type":"t"}', 400, "body"),
        (b'{"data":' + b"[" * 100 + b"]" * 100 + b"}", 400, "body"),
        (b'{"data":' + b"[" * 100_000, 400, "body"),
    ],
)
async def test_a_wrong_document_is_refused_and_nothing_changes(
    client: Client, connection: psycopg.Connection, document: bytes, status: int, field: str | None
) -> None:
    before = ledger(connection)
    reply = await client.ask("POST", "/v1/events?destination=acme", data=document, headers=STRUCTURED)
    assert (reply.status, reply.body.get("field")) == (status, field), reply
    assert reply.problem
    assert ledger(connection) == before


async def test_many_at_once_share_commits_and_each_gets_its_own_answer(
    client: Client, connection: psycopg.Connection
) -> None:
    """Good, repeated, conflicting and refused ones in the same groups."""
    await client.admit(b"old", id_="taken")
    before = scalar(connection, "select xact_commit from pg_stat_database where datname = current_database()")

    async def one(number: int) -> tuple[int, int]:
        match number % 4:
            case 0:
                reply = await client.admit(b"new", id_=f"new-{number}")
            case 1:
                reply = await client.admit(b"same", id_="same")
            case 2:
                reply = await client.admit(b"other", id_="taken")
            case _:
                reply = await client.admit(id_=f"lost-{number}", query="?destination=nobody")
        return number, reply.status

    answers = await asyncio.gather(*(one(number) for number in range(200)))

    assert [status for _, status in sorted(answers)] == [202, 202, 409, 422] * 50
    assert scalar(connection, "select count(*) from outrider.event") == 1 + 50 + 1
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 1 + 50 + 1
    connection.execute("select pg_stat_force_next_flush()")
    after = scalar(connection, "select xact_commit from pg_stat_database where datname = current_database()")
    assert after - before < 150


async def test_an_event_that_another_transaction_holds_stops_no_other(
    database: str, client: Client, connection: psycopg.Connection
) -> None:
    with psycopg.connect(database) as holder:
        holder.execute(
            "select outrider.admit(%s, 'media.processed', 'x'::bytea, destinations => array['acme'])",
            (event_identity("/media", "held"),),
        )
        replies = await asyncio.gather(
            client.admit(b"x", id_="held"), *(client.admit(id_=f"free-{number}") for number in range(20))
        )
        held, *free = replies
        assert (held.status, held.problem) == (503, "unavailable")
        assert int(held.headers["retry-after"]) >= 1
        assert [reply.status for reply in free] == [202] * 20
    again = await client.admit(b"x", id_="held")
    assert (again.status, again.body["existing"]) == (202, 1)
