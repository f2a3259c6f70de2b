"""Receivers made over HTTP: on record, without secrets in answers, and enabled only when they answer where that is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from pipeline.cli.run_api import receivers_of
from pipeline.core.sealing import Vault, is_sealed, new_key
from pipeline.ledger.api_keys import Scope
from pipeline.ledger.destinations import SIGNING
from pipeline.settings import load_settings
from tests.support.api_world import Client, Reply, api, caller, make_key
from tests.support.ledger_rows import add_destination, connect, scalar

JSON = {"content-type": "application/json"}


@dataclass
class Receiver:
    """Keeps what it was sent, and answers as it is told."""

    status: int = 204
    before_answer: Any = None
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        if self.before_answer is not None:
            await asyncio.to_thread(self.before_answer)
        return web.Response(status=self.status, text="" if self.status == 204 else "inner secret")


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[None]:
    runner = web.ServerRunner(web.Server(receiver.take))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with listening(receiver):
        yield receiver


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        yield connection


@pytest.fixture
async def client(database: str, role_dsns: dict[str, str]) -> AsyncIterator[Client]:
    key = make_key(database, Scope.OPERATE, Scope.READ, Scope.ADMIT)
    async with api(role_dsns["api"]) as url, caller(url, key) as client:
        yield client


async def add(client: Client, **members: Any) -> Reply:
    return await client.ask(
        "POST", "/v1/destinations", json={"destination_id": "acme", "url": "https://receiver.example/hook", **members}
    )


def runs(connection: psycopg.Connection) -> list[tuple[str, str, str | None]]:
    return connection.execute("select kind, operator, reason from outrider.run order by started_at").fetchall()


async def test_a_destination_is_added_on_record_and_its_secret_shown_once(
    client: Client, connection: psycopg.Connection
) -> None:
    reply = await add(client, burst=7, subscriptions=["media.*"])
    assert reply.status == 201
    made = reply.body["destination"]
    assert (made["destination_id"], made["enabled"], made["burst"], made["concurrency"]) == ("acme", True, 7, 16)
    assert made["subscriptions"] == ["media.*"]
    assert reply.body["verification"] is None
    secret = reply.body["signing_secret"]["secret"]
    assert scalar(connection, "select secret from outrider.destination_secret") == secret
    ((kind, operator, _),) = runs(connection)
    assert kind == "destination.add"
    assert operator.startswith("api:")
    shown = await client.ask("GET", "/v1/destinations/acme")
    assert shown.body == made
    assert (await client.admit()).body["accepted"] == 1


async def test_a_name_that_is_taken_is_a_conflict(client: Client, connection: psycopg.Connection) -> None:
    add_destination(connection)
    reply = await add(client)
    assert (reply.status, reply.problem) == (409, "exists")


async def test_what_the_api_makes_is_sealed_where_a_key_is_set(
    database: str, role_dsns: dict[str, str], connection: psycopg.Connection
) -> None:
    keys = new_key("k1")
    token = make_key(database, Scope.OPERATE)
    async with api(role_dsns["api"], secrets_keys=keys) as url, caller(url, token) as client:
        shown = (await add(client)).body["signing_secret"]["secret"]
        rotated = (await client.ask("POST", "/v1/destinations/acme/rotate-secret", json={})).body["secret"]
    stored = connection.execute("select secret from outrider.destination_secret order by created_at").fetchall()
    opened = [Vault.of(keys).open(text, purpose=SIGNING, owner="acme") for (text,) in stored]
    assert all(is_sealed(text) for (text,) in stored)
    assert opened == [shown, rotated]


async def test_what_is_given_changes_and_nothing_else(client: Client, connection: psycopg.Connection) -> None:
    before = (await add(client, subscriptions=["a", "b"])).body["destination"]
    reply = await client.ask(
        "PATCH", "/v1/destinations/acme", json={"concurrency": 3, "subscribe": ["c.*"], "unsubscribe": ["a"]}
    )
    assert reply.status == 200
    changed = {name: value for name, value in reply.body.items() if value != before[name] and name != "updated_at"}
    assert changed == {"concurrency": 3, "subscriptions": ["b", "c.*"]}


async def test_disabling_and_enabling_are_on_record(client: Client, connection: psycopg.Connection) -> None:
    await add(client)
    off = await client.ask("POST", "/v1/destinations/acme/disable", json={"reason": "moves house"})
    assert (off.body["enabled"], off.body["disabled_reason"]) == (False, "moves house")
    on = await client.ask("POST", "/v1/destinations/acme/enable", json={"reason": "is back"})
    assert (on.body["enabled"], on.body["disabled_reason"]) == (True, None)
    assert [(kind, reason) for kind, _, reason in runs(connection)][1:] == [
        ("destination.disable", "moves house"),
        ("destination.enable", "is back"),
    ]


async def test_a_rotated_secret_signs_beside_the_one_before(client: Client, connection: psycopg.Connection) -> None:
    first = (await add(client)).body["signing_secret"]["secret"]
    reply = await client.ask("POST", "/v1/destinations/acme/rotate-secret", json={"overlap_seconds": 60})
    assert reply.status == 201
    assert reply.body["secret"] != first
    assert scalar(connection, "select count(*) from outrider.destination_secret where valid_until is null") == 1
    assert scalar(connection, "select count(*) from outrider.destination_secret where valid_until > now()") == 1


async def test_a_receiver_that_takes_the_ping_is_enabled(
    client: Client, connection: psycopg.Connection, receiver: Receiver
) -> None:
    enabled_at_ping: list[bool] = []
    receiver.before_answer = lambda: enabled_at_ping.append(scalar_of_its_own(connection.info.dsn, connection))
    reply = await add(client, url=receiver.url, verify=True)

    assert reply.status == 201
    assert enabled_at_ping == [False]
    assert reply.body["destination"]["enabled"] is True
    assert reply.body["verification"]["success"] is True
    ((headers, body),) = receiver.requests
    Webhook(reply.body["signing_secret"]["secret"]).verify(body, headers)


def scalar_of_its_own(dsn: str, connection: psycopg.Connection) -> bool:
    with psycopg.connect(dsn, password=connection.info.password) as other:
        return bool(scalar(other, "select enabled from outrider.destination"))


async def test_a_receiver_that_refuses_the_ping_stays_disabled_until_it_takes_one(
    client: Client, receiver: Receiver
) -> None:
    receiver.status = 500
    reply = await add(client, url=receiver.url, verify=True)
    assert (reply.status, reply.body["destination"]["enabled"]) == (201, False)
    assert reply.body["destination"]["disabled_reason"] == "awaits verification"
    assert (reply.body["verification"]["success"], reply.body["verification"]["status"]) == (False, 500)
    # What a receiver inside the network says is not for whoever may name its URL.
    assert "inner secret" not in str(reply.body)
    again = await client.ask("POST", "/v1/destinations/acme/verify")
    assert (again.status, again.problem) == (409, "verification-failed")
    receiver.status = 204
    last = await client.ask("POST", "/v1/destinations/acme/verify")
    assert (last.status, last.body["destination"]["enabled"]) == (200, True)
    assert len(receiver.requests) == 3


async def test_an_answer_of_the_url_before_enables_nothing(
    client: Client, connection: psycopg.Connection, receiver: Receiver
) -> None:
    receiver.before_answer = lambda: move_elsewhere(connection.info.dsn, connection.info.password)
    await add(client, url=receiver.url)
    await client.ask("POST", "/v1/destinations/acme/disable", json={"reason": "test"})
    reply = await client.ask("POST", "/v1/destinations/acme/verify")
    assert (reply.status, reply.problem) == (409, "verification-failed")
    assert scalar(connection, "select enabled from outrider.destination") is False


def move_elsewhere(dsn: str, password: str) -> None:
    with psycopg.connect(dsn, password=password) as other:
        other.execute("update outrider.destination set url = 'https://other.example'")


@pytest.mark.parametrize(
    ("members", "status", "field"),
    [
        ({"destination_id": ""}, 422, "destination_id"),
        ({"destination_id": "a\nb"}, 422, "destination_id"),
        ({"destination_id": "x" * 201}, 422, "destination_id"),
        ({"url": "ftp://receiver.example"}, 422, "url"),
        ({"url": "https://user:secret@receiver.example"}, 422, "url"),
        ({"url": "https://10.0.0.1/"}, 422, "url"),
        ({"url": "https://169.254.169.254/latest"}, 422, "url"),
        ({"url": 7}, 422, "url"),
        ({"burst": 0}, 422, "burst"),
        ({"burst": 1.5}, 422, "burst"),
        ({"start_rate_per_second": 1e9}, 422, "start_rate_per_second"),
        ({"subscriptions": ["a.*.b"]}, 422, "subscriptions"),
        ({"allowed_networks": ["0.0.0.0/0"]}, 422, None),
    ],
)
async def test_a_wrong_member_is_named_and_nothing_is_added(
    client: Client, connection: psycopg.Connection, members: dict[str, Any], status: int, field: str | None
) -> None:
    reply = await add(client, **members)
    assert (reply.status, reply.body.get("field")) == (status, field), reply
    assert reply.problem
    assert scalar(connection, "select count(*) from outrider.destination") == 0
    assert runs(connection) == []


def test_private_networks_and_plain_http_are_for_those_who_set_them() -> None:
    strict = receivers_of(load_settings())
    for url in ("http://receiver.example", "https://127.0.0.1", "https://localhost", "https://[::1]"):
        with pytest.raises(ValueError, match=r"use https|allow it with"):
            strict.check_url(url)
    strict.check_url("https://receiver.example/hook")


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", ""), ("POST", "/enable"), ("POST", "/disable"), ("POST", "/verify"), ("POST", "/rotate-secret")],
)
async def test_acts_on_what_is_not_there_are_404(client: Client, method: str, path: str) -> None:
    body = {"PATCH": {"burst": 1}}.get(method) or ({} if "rotate" in path else {"reason": "test"})
    reply = await client.ask(method, f"/v1/destinations/nobody{path}", json=body)
    assert (reply.status, reply.problem) == (404, "not-found")


async def test_reading_does_not_let_operate(database: str, role_dsns: dict[str, str]) -> None:
    async with api(role_dsns["api"]) as url, caller(url, make_key(database, Scope.READ, Scope.ADMIT)) as client:
        reply = await add(client)
        assert (reply.status, reply.problem) == (403, "forbidden")
