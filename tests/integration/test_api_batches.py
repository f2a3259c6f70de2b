"""``POST /v1/events:batch``: one transaction, a result for each item, and what one bad item does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pipeline.admission.api import ApiLimits
from pipeline.admission.cloudevents import event_identity
from tests.support.api_world import Client, Reply, api, caller, items, make_key, structured
from tests.support.ledger_rows import add_destination, connect, ledger, scalar

PATH = "/v1/events:batch"
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
BATCHED = {"content-type": "application/cloudevents-batch+json"}


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        add_destination(connection, "off", enabled=False)
        yield connection


@pytest.fixture
async def client(database: str, role_dsns: dict[str, str], connection: psycopg.Connection) -> AsyncIterator[Client]:
    limits = ApiLimits(batch_bytes_max=100_000, batch_items_max=50)
    async with api(role_dsns["api"], limits=limits) as url, caller(url, make_key(database)) as client:
        yield client


def good(number: int, **members: Any) -> dict[str, Any]:
    return {"event": structured(f"e{number}", data={"n": number}, **members), "destinations": ["acme"]}


async def send(client: Client, batch: Any, query: str = "") -> Reply:
    return await client.ask("POST", PATH + query, data=json.dumps(batch), headers=JSON)


async def test_all_items_are_one_commit(client: Client, connection: psycopg.Connection) -> None:
    reply = await send(client, [good(n) for n in range(5)])
    assert (reply.status, reply.body["accepted"], reply.body["existing"], reply.body["refused"]) == (202, 5, 0, 0)
    assert [result["status"] for result in reply.body["results"]] == [202] * 5
    assert [result["receipt"]["event_id"] for result in reply.body["results"]] == [
        event_identity("/media", f"e{n}") for n in range(5)
    ]
    assert scalar(connection, "select count(distinct xmin::text) from outrider.event") == 1


async def test_one_bad_item_does_not_take_the_others_with_it(client: Client, connection: psycopg.Connection) -> None:
    await send(client, [good(1)])
    batch: list[Any] = [
        good(1),  # a repeat
        {"event": structured("e1", data={"n": "other"}), "destinations": ["acme"]},  # a conflict
        {"event": structured("e2"), "destinations": ["nobody"]},
        {"event": structured("e3"), "destinations": ["off"]},
        {"event": structured("e4", type="a.*"), "destinations": ["acme"]},
        {"event": structured("", data=1), "destinations": ["acme"]},
        {"event": structured("e6"), "destination": "acme"},  # a slip of the pen
        {"event": structured("e7"), "destinations": "acme"},
        7,
        good(8),
    ]
    reply = await send(client, batch)

    assert reply.status == 202
    assert [result["status"] for result in reply.body["results"]] == [202, 409, 422, 422, 422, 400, 422, 422, 422, 202]
    assert (reply.body["accepted"], reply.body["existing"], reply.body["refused"]) == (1, 1, 8)
    problems = [result.get("problem") for result in reply.body["results"]]
    assert [problem["place"] for problem in problems if problem] == list(range(1, 9))
    assert all(problem["detail"] for problem in problems if problem)
    assert problems[7]["field"] == "destinations"
    assert scalar(connection, "select count(*) from outrider.event") == 2
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 2


async def test_an_item_that_repeats_one_before_it_is_a_repeat(client: Client) -> None:
    changed = {"event": structured("e1", data="other"), "destinations": ["acme"]}
    reply = await send(client, [good(1), good(1), changed])
    receipts = [result.get("receipt") for result in reply.body["results"]]
    assert [(r["accepted"], r["existing"]) for r in receipts if r] == [(1, 0), (0, 1)]
    assert reply.body["results"][2]["status"] == 409


@pytest.mark.parametrize("bad", [{"event": structured("e2"), "destinations": ["nobody"]}, {"event": 7}])
async def test_an_atomic_batch_is_all_or_nothing(
    client: Client, connection: psycopg.Connection, bad: dict[str, Any]
) -> None:
    before = ledger(connection)
    reply = await send(client, [good(0), good(1), bad, good(3)], "?atomic=true")
    assert (reply.status, reply.problem) == (422, "invalid")
    assert [error["place"] for error in reply.body["errors"]] == [2]
    assert ledger(connection) == before
    assert (await send(client, [good(0), good(1)], "?atomic=true")).body["accepted"] == 2


async def test_lines_are_items_and_a_broken_line_is_one_of_them(client: Client) -> None:
    lines = b"\n".join([json.dumps(good(1)).encode(), b"{broken", b"", json.dumps(good(2)).encode(), b""])
    reply = await client.ask("POST", PATH, data=lines, headers=NDJSON)
    assert [result["status"] for result in reply.body["results"]] == [202, 400, 202]


async def test_a_cloudevents_batch_goes_where_the_query_says(client: Client) -> None:
    batch = json.dumps([structured("a"), structured("b")])
    reply = await client.ask("POST", PATH + "?destination=acme", data=batch, headers=BATCHED)
    assert (reply.status, reply.body["accepted"]) == (202, 2)


async def test_items_without_a_routing_of_their_own_take_that_of_the_query(client: Client) -> None:
    batch = items(structured("a"), structured("b"))
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    reply = await send(client, batch, f"?destination=acme&deliver_at={tomorrow}")
    states = [result["receipt"]["deliveries"][0]["state"] for result in reply.body["results"]]
    assert states == ["pending", "pending"]


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b"", JSON, (400, "malformed-request")),
        (b"[]", JSON, (400, "malformed-request")),
        (b"\n\n", NDJSON, (400, "malformed-request")),
        (b"[" * 1_000, JSON, (400, "malformed-request")),
        (b"{}", JSON, (422, "invalid")),
        (b"[]", {"content-type": "text/csv"}, (415, "unsupported-media-type")),
        (b"[]", {"content-type": "application/json; charset=latin-1"}, (415, "unsupported-media-type")),
        (b"[" + b"1," * 50 + b"1]", JSON, (413, "too-large")),
        (b"1\n" * 51, NDJSON, (413, "too-large")),
        (b" " * 100_001, JSON, (413, "too-large")),
    ],
)
async def test_what_is_no_batch_is_refused_whole(
    client: Client, connection: psycopg.Connection, body: bytes, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    before = ledger(connection)
    reply = await client.ask("POST", PATH, data=body, headers=headers)
    assert (reply.status, reply.problem) == expected
    assert ledger(connection) == before
