"""What may be read over HTTP, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest

from tests.support.api_world import Client, api, caller, make_key
from tests.support.ledger_rows import STATES, add_delivery, add_destination, connect


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        add_destination(connection, "b:/?#%")
        yield connection


@pytest.fixture
async def client(database: str, role_dsns: dict[str, str], connection: psycopg.Connection) -> AsyncIterator[Client]:
    async with api(role_dsns["api"]) as url, caller(url, make_key(database)) as client:
        yield client


async def pages(client: Client, path: str, member: str, **query: object) -> list[list[dict[str, Any]]]:
    """Every page of a list, following its cursors."""
    found = []
    cursor = None
    while True:
        parameters = {**query, **({"cursor": cursor} if cursor else {})}
        reply = await client.ask("GET", f"{path}?{urlencode(parameters, doseq=True)}")
        assert reply.status == 200, reply
        found.append(reply.body[member])
        cursor = reply.body["next_cursor"]
        if cursor is None:
            return found
        assert len(found) < 50


def flat(found: list[list[dict[str, Any]]], name: str) -> list[str]:
    return [entry[name] for page in found for entry in page]


async def test_a_delivery_is_shown_with_its_attempts_and_without_what_the_receiver_said(
    client: Client, connection: psycopg.Connection
) -> None:
    delivery_id = add_delivery(connection, "e/1", "pending", waiting_reason="retry", last_status=503)
    connection.execute(
        "insert into outrider.delivery_attempt (delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, "
        "worker_id, result, outcome, status, ambiguous, response_excerpt, payload_sha256, started_at, duration_seconds) "
        "values (%s, 'e/1', 't', 'acme', 1, 1, 'w1', 'retry', 'server_error', 503, false, 'inner secret', '', now(), 0.1)",
        (delivery_id,),
    )
    reply = await client.ask("GET", f"/v1/deliveries/{delivery_id}")
    assert reply.status == 200
    assert (reply.body["state"], reply.body["waits_for"], reply.body["last_status"]) == ("pending", "retry", 503)
    assert [(a["attempt"], a["result"], a["status"]) for a in reply.body["attempts"]] == [(1, "retry", 503)]
    assert "inner secret" not in str(reply.body)


async def test_an_event_is_shown_without_its_payload_and_with_its_deliveries(
    client: Client, connection: psycopg.Connection
) -> None:
    for destination_id in ("acme", "b:/?#%"):
        add_delivery(connection, "e/1 ż", "dead", destination_id)
    reply = await client.ask("GET", f"/v1/events/{quote('e/1 ż', safe='')}")
    assert reply.status == 200
    assert reply.body["event_id"] == "e/1 ż"
    assert [d["destination_id"] for d in reply.body["deliveries"]] == ["acme", "b:/?#%"]
    assert "payload" not in reply.body
    assert len(reply.body["payload_sha256"]) == 64


@pytest.mark.parametrize(
    "path", ["/v1/events/none", "/v1/events/%00", "/v1/events/%FF", "/v1/deliveries/none", "/v1/destinations/none"]
)
async def test_what_is_not_there_is_404(client: Client, path: str) -> None:
    reply = await client.ask("GET", path)
    assert reply.status in (400, 404)
    assert reply.problem == ("malformed-request" if "%" in path else "not-found")


async def test_lists_come_whole_and_in_order_whatever_the_page(client: Client, connection: psycopg.Connection) -> None:
    made: dict[str, list[str]] = {state: [] for state in STATES}
    for number in range(30):
        state = STATES[number % len(STATES)]
        made[state].append(add_delivery(connection, f"e{number}", state))
    waiting = [*made["pending"], *made["enqueued"], *made["leased"]]
    for limit in (1, 4, 30, 500):
        found = await pages(client, "/v1/deliveries", "deliveries", limit=limit)
        assert sorted(flat(found, "delivery_id")) == sorted(waiting)
        assert flat(found, "created_at") == sorted(flat(found, "created_at"))
        dead = await pages(client, "/v1/deliveries", "deliveries", limit=limit, state="dead")
        assert flat(dead, "delivery_id") == made["dead"]
        of_acme = await pages(client, "/v1/deliveries", "deliveries", limit=limit, destination="acme")
        assert sorted(flat(of_acme, "delivery_id")) == sorted(id_ for ids in made.values() for id_ in ids)
        some = await pages(
            client, "/v1/deliveries", "deliveries", limit=limit, destination="acme", state=["succeeded", "dead"]
        )
        assert sorted(flat(some, "delivery_id")) == sorted(made["succeeded"] + made["dead"])
        none = await pages(client, "/v1/deliveries", "deliveries", limit=limit, destination="b:/?#%")
        assert flat(none, "delivery_id") == []
        events = await pages(client, "/v1/events", "events", limit=limit)
        assert flat(events, "event_id") == [f"e{number}" for number in reversed(range(30))]


async def test_deliveries_of_one_event_come_page_by_page(client: Client, connection: psycopg.Connection) -> None:
    names = sorted(["acme", "b:/?#%", *(add_destination(connection, f"d{number:02}") for number in range(10))])
    for name in names:
        add_delivery(connection, "e", "succeeded", name)
    found = await pages(client, "/v1/deliveries", "deliveries", event_id="e", limit=5)
    assert sorted(flat(found, "destination_id")) == names
    assert [len(page) for page in found] == [5, 5, 2]


async def test_destinations_come_page_by_page_without_secrets(client: Client) -> None:
    found = await pages(client, "/v1/destinations", "destinations", limit=1)
    assert flat(found, "destination_id") == ["acme", "b:/?#%"]
    assert "whsec_" not in str(found)
    assert (await client.ask("GET", f"/v1/destinations/{quote('b:/?#%', safe='')}")).status == 200


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/v1/deliveries?limit=0", 400, "limit"),
        ("/v1/deliveries?limit=501", 400, "limit"),
        ("/v1/deliveries?limit=²", 400, "limit"),
        ("/v1/deliveries?limit=1&limit=2", 400, "limit"),
        ("/v1/deliveries?cursor=x", 400, "cursor"),
        ("/v1/deliveries?cursor=ZXZlbnRzIDIwMzAtMDEtMDFUMDA6MDA6MDArMDA6MDAvZQ==", 400, "cursor"),
        ("/v1/events?cursor=ZXZlbnRzIG5vIHRpbWU=", 400, "cursor"),
        ("/v1/events?cursor=ZXZlbnRzIABh", 400, "cursor"),
        ("/v1/deliveries?state=lost", 400, "state"),
        ("/v1/deliveries?state=succeeded", 422, "state"),
        ("/v1/deliveries?state=dead&state=pending", 422, "state"),
        ("/v1/deliveries?event_id=e&destination=acme", 422, "event_id"),
        ("/v1/deliveries?page=2", 400, "page"),
        ("/v1/status?x=1", 400, "x"),
    ],
)
async def test_a_wrong_parameter_is_named(client: Client, path: str, status: int, field: str) -> None:
    reply = await client.ask("GET", path)
    assert (reply.status, reply.body["field"]) == (status, field)
    assert reply.problem
    assert reply.body["mend"]
