"""Who gets in: keys with scopes, an end, and limits; and what the command line shows of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from io import BytesIO

import psycopg
import pytest

from pipeline.admission.key_ring import KeyRing
from pipeline.admission.key_tokens import new_token, parse_token
from pipeline.admission.problems import Refusal
from pipeline.ledger.api_keys import KeyLimits, Scope, list_keys, revoke_key
from pipeline.ledger.pool import open_pool
from tests.support.api_world import DEADLINE_SECONDS, EVENT, Client, api, caller, make_key
from tests.support.ledger_rows import connect, scalar
from tests.support.program import program

BODY = b"x" * 10_000


@pytest.fixture
async def url(database: str, role_dsns: dict[str, str]) -> AsyncIterator[str]:
    async with api(role_dsns["api"]) as url, caller(url, make_key(database)):
        yield url


async def statuses_by_scope(client: Client) -> tuple[int, int, int]:
    """Of an admission, of reading and of operating; none of the requests is complete, so none changes a row."""
    return (
        (await client.ask("POST", "/v1/events")).status,
        (await client.ask("GET", "/v1/events/none")).status,
        (await client.ask("POST", "/v1/destinations", data=b"{}", headers={"content-type": "application/json"})).status,
    )


async def test_a_key_may_do_what_its_scopes_say(url: str, database: str) -> None:
    allowed = {Scope.ADMIT: (400, 403, 403), Scope.READ: (403, 404, 403), Scope.OPERATE: (403, 403, 422)}
    for scope, expected in allowed.items():
        async with caller(url, make_key(database, scope), wait=False) as client:
            await until(client, not_status=401)
            assert await statuses_by_scope(client) == expected
            refused = ("POST", "/v1/destinations") if scope is Scope.ADMIT else ("POST", "/v1/events")
            reply = await client.ask(*refused)
            assert (reply.status, reply.problem, reply.body["field"]) == (403, "forbidden", "Authorization")


async def until(client: Client, *, not_status: int) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await client.ask("GET", "/v1/events/none")).status == not_status:  # noqa: ASYNC110 - it is asked from outside
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        "Basic eDp5",
        "Bearer " + "x" * 9_000,
        f"Bearer outr_{'a' * 16}_{'b' * 43}",
        "Bearer outr_ż",
    ],
)
async def test_what_is_no_key_is_turned_away_with_the_mend(url: str, authorization: str | None) -> None:
    async with caller(url, None, wait=False) as client:
        headers = EVENT if authorization is None else {**EVENT, "Authorization": authorization}
        reply = await client.ask("POST", "/v1/events", data=BytesIO(b"x" * 10_000_000), headers=headers)
        assert (reply.status, reply.problem) == (401, "unauthenticated")
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert "outrider key create" in reply.body["mend"]


async def test_the_right_id_with_another_secret_is_no_key(url: str, database: str) -> None:
    token = parse_token(make_key(database))
    assert token is not None
    async with caller(url, str(token)) as client:
        assert (await client.ask("GET", "/v1/events")).status == 200
    async with caller(url, f"outr_{token.key_id}_{new_token().secret}", wait=False) as client:
        assert (await client.ask("GET", "/v1/events")).status == 401


async def test_a_revoked_key_is_turned_away_within_seconds(url: str, database: str) -> None:
    key = make_key(database)
    async with caller(url, key) as client:
        assert (await client.ask("GET", "/v1/events/none")).status == 404
        with connect(database) as connection:
            token = parse_token(key)
            assert token is not None
            assert revoke_key(connection, token.key_id, "ada")
            assert not revoke_key(connection, "a" * 16, "ada")
        await until(client, not_status=404)
        assert (await client.ask("GET", "/v1/events/none")).problem == "unauthenticated"


async def test_an_expired_key_is_turned_away(url: str, database: str) -> None:
    key = make_key(database, expires_at=datetime.now(UTC) + timedelta(seconds=8))
    async with caller(url, key) as client:
        await until(client, not_status=404)
        assert (await client.ask("GET", "/v1/events/none")).problem == "unauthenticated"


async def test_a_key_that_asks_too_often_is_told_when_to_come_again(url: str, database: str) -> None:
    limits = KeyLimits(requests_per_second=0.2, bytes_per_second=1e9, in_flight_max=100)
    async with caller(url, make_key(database, limits=limits), wait=False) as client:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (reply := await client.ask("GET", "/v1/events/none")).status == 401:  # noqa: ASYNC110 - it is asked from outside
                await asyncio.sleep(0.05)
        assert reply.status == 404
        again = await client.ask("GET", "/v1/events/none")
        assert (again.status, again.problem) == (429, "too-many-requests")
        assert 1 <= int(again.headers["retry-after"]) <= 5


async def test_a_key_that_sends_too_many_bytes_is_slowed(url: str, database: str) -> None:
    limits = KeyLimits(requests_per_second=1e6, bytes_per_second=5_000, in_flight_max=100)
    async with caller(url, make_key(database, limits=limits)) as client:
        assert (await client.admit(BODY)).status == 202
        reply = await client.admit(BODY)
        assert (reply.status, reply.problem) == (429, "too-many-requests")
        assert int(reply.headers["retry-after"]) >= 1


async def test_requests_in_flight_are_limited_and_other_keys_are_not(url: str, database: str) -> None:
    limits = KeyLimits(requests_per_second=1e6, bytes_per_second=1e9, in_flight_max=1)
    key = make_key(database, limits=limits)
    async with caller(url, key) as client, caller(url, make_key(database)) as other:
        writer = await half_sent(url, key)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (reply := await client.ask("GET", "/v1/events/none")).status != 429:  # noqa: ASYNC110 - it is asked from outside
                await asyncio.sleep(0.02)
        assert reply.problem == "too-many-requests"
        assert (await other.ask("GET", "/v1/events/none")).status == 404
        writer.close()
        await until(client, not_status=429)


async def half_sent(url: str, key: str) -> asyncio.StreamWriter:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 5\r\n\r\nx".encode()
    )
    await writer.drain()
    return writer


async def test_uses_are_written_down_together(database: str, role_dsns: dict[str, str]) -> None:
    key, unused = make_key(database), make_key(database)
    async with open_pool(role_dsns["api"], 2, "test") as pool:
        ring = KeyRing(pool)
        await ring.refresh()
        before = datetime.now(UTC)
        for _ in range(3):
            ring.authenticate(f"Bearer {key}")
        await ring.write_uses()
        await ring.write_uses()
    with connect(database) as connection:
        used = {entry.key_id: entry.last_used_at for entry in list_keys(connection)}
    known, other = parse_token(key), parse_token(unused)
    assert known is not None
    assert other is not None
    last = used[known.key_id]
    assert last is not None
    assert before <= last <= datetime.now(UTC)
    assert used[other.key_id] is None


async def test_keys_that_cannot_be_read_anew_stop_counting(
    database: str, role_dsns: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(database)
    async with open_pool(role_dsns["api"], 1, "test") as pool:
        ring = KeyRing(pool)
        with pytest.raises(Refusal, match="cannot be checked"):
            ring.authenticate(f"Bearer {key}")
        await ring.refresh()
        assert ring.authenticate(f"Bearer {key}").key_id in key
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 31)
        with pytest.raises(Refusal, match="cannot be checked"):
            ring.authenticate(f"Bearer {key}")


def test_the_command_line_shows_a_key_once_and_keeps_its_hash(
    database: str,
    role_dsns: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outrider = program(monkeypatch, capsys, postgres_dsn=role_dsns["operator"])
    options = ("--scope", "admit", "--scope", "read", "--expires-days", "30", "--operator", "ada", "--json")
    made = outrider("key", "create", "media team", *options).json
    token = parse_token(made["key"])
    assert token is not None
    assert token.key_id == made["key_id"]
    with connect(database) as connection:
        assert scalar(connection, "select secret_sha256 from outrider.api_key") == token.secret_sha256
        assert token.secret not in scalar(connection, "select k::text from outrider.api_key k")

    listed = outrider("key", "list", "--json").stdout
    assert token.secret not in listed
    (entry,) = json.loads(listed)
    assert (entry["key_id"], entry["name"], entry["state"]) == (token.key_id, "media team", "active")
    assert (entry["scopes"], entry["created_by"], entry["last_used_at"]) == (["admit", "read"], "ada", None)

    assert outrider("key", "revoke", token.key_id, "--operator", "bob").exit_code == 0
    (entry,) = outrider("key", "list", "--json").json
    assert (entry["state"], entry["revoked_by"]) == ("revoked", "bob")
    assert outrider("key", "list").stdout.splitlines()[1].split()[:2] == [token.key_id, "revoked"]
    refused = outrider("key", "revoke", "nobody")
    assert refused.exit_code == 1
    assert "outrider key list" in refused.stderr


def test_the_api_makes_no_keys_and_sees_no_payload(role_dsns: dict[str, str]) -> None:
    with psycopg.connect(role_dsns["api"], autocommit=True) as connection:
        for statement in (
            "insert into outrider.api_key (key_id) values ('aaaaaaaaaaaaaaaa')",
            "update outrider.api_key set revoked_at = null",
            "update outrider.api_key set scopes = array['operate']",
            "select payload from outrider.event",
            "select response_excerpt from outrider.delivery_attempt",
            "select * from outrider.dispatch_outbox",
            "update outrider.delivery set state = 'dead'",
            "update outrider.ledger_setting set payload_bytes_max = 1",
            "select outrider.admit('e', 't', ''::bytea)",
            "delete from outrider.destination",
            "truncate outrider.subscription",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
