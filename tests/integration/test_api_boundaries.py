"""Where the API meets what it cannot choose: a database that goes away, and callers that send nonsense."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import psycopg
import pytest

from pipeline.admission.api import ApiLimits
from pipeline.stack.embedded import EmbeddedStack
from tests.support.api_world import DEADLINE_SECONDS, EVENT, Client, api, caller, make_key
from tests.support.ledger_rows import add_destination, connect, ledger, scalar

MALFORMED = 10_000
MEMORY_MIB_MAX = 64


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        connection.execute("insert into outrider.subscription values ('acme', '*')")
        yield connection


@pytest.fixture
def key(database: str) -> str:
    return make_key(database)


@pytest.fixture
async def url(role_dsns: dict[str, str], connection: psycopg.Connection) -> AsyncIterator[str]:
    async with api(role_dsns["api"]) as url:
        yield url


@pytest.fixture
async def client(url: str, key: str) -> AsyncIterator[Client]:
    async with caller(url, key) as client:
        yield client


async def raw(url: str, request: bytes) -> bytes:
    """What comes back until the server closes, which it does after what is no HTTP, and where a body is left over."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await reader.read()
    finally:
        writer.close()


async def test_a_body_above_the_limit_is_refused_before_it_is_read(client: Client, url: str, key: str) -> None:
    reply = await client.admit(b"x" * (256 * 1024 + 1))
    assert (reply.status, reply.problem) == (413, "too-large")
    head = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 999999999999\r\n\r\n"
    assert (await raw(url, head.encode())).startswith(b"HTTP/1.1 413")


async def test_a_body_without_a_length_is_refused_while_it_is_read(
    client: Client, connection: psycopg.Connection
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 64 * 1024
            yield b"x" * 64 * 1024
            await asyncio.sleep(0)

    try:
        reply = await client.ask("POST", "/v1/events", data=endless(), headers=EVENT)
        assert (reply.status, reply.problem) == (413, "too-large")
    except aiohttp.ClientConnectionError:
        pass  # it was told, and hung up on while it was still sending
    assert sent < 64 * 1024 * 1024
    assert scalar(connection, "select count(*) from outrider.event") == 0


async def test_bodies_share_one_bound_of_memory(
    role_dsns: dict[str, str], key: str, connection: psycopg.Connection
) -> None:
    limits = ApiLimits(buffered_bytes_max=100_000)
    async with api(role_dsns["api"], limits=limits) as url, caller(url, key) as client:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 90000\r\n\r\n"
        writer.write(head.encode() + b"x" * 80_000)
        await writer.drain()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (reply := await client.admit(b"x" * 30_000)).status == 202:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (reply.status, reply.problem) == (503, "unavailable")
        assert (await client.admit(b"small", id_="small")).status == 202
        writer.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await client.admit(b"x" * 30_000)).status != 202:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /v1/events HTTP/9.9\r\n\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_a_problem_and_the_connection_ends(url: str, request_bytes: bytes) -> None:
    answer = await raw(url, request_bytes)
    assert answer.split(b" ", 2)[1] == b"400"
    assert b"application/problem+json" in answer
    assert b"Traceback" not in answer


async def test_ten_thousand_malformed_requests_leave_no_row_and_no_leak(
    client: Client, url: str, key: str, connection: psycopg.Connection
) -> None:
    before = ledger(connection)
    source = random.Random(7)
    host, port = url.removeprefix("http://").split(":")
    places = asyncio.Semaphore(50)

    async def one() -> None:
        async with places:
            request, is_whole = malformed(source, key)
            await shoot(host, int(port), request, is_whole=is_whole)

    async def some(count: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(one())

    await some(MALFORMED // 5)
    gc.collect()
    at_first = used()
    await some(MALFORMED - MALFORMED // 5)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while used()[0] > at_first[0] + 5 or len(asyncio.all_tasks()) > 40:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    gc.collect()
    assert used()[1] - at_first[1] < MEMORY_MIB_MAX
    assert ledger(connection) == before
    assert (await client.admit()).status == 202
    sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name like %s"
    assert scalar(connection, sessions, "outrider test api%") <= 4


def used() -> tuple[int, int]:
    """Open files and resident MiB of this process, which holds the server."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * resource.getpagesize() // 2**20  # noqa: PTH208


async def shoot(host: str, port: int, request: bytes, *, is_whole: bool) -> None:
    """Send it and read the answer; what is not whole is broken off, since the server would wait for the rest."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        if not is_whole:
            writer.write_eof()
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer = await reader.read()
        assert answer or not is_whole, request[:300]
        # Whatever it was, it was not admitted, and it was no defect.
        assert not answer or answer.split(b" ", 2)[1][:1] == b"4", (request[:300], answer[:300])
    except ConnectionError:
        pass
    finally:
        writer.close()


def malformed(source: random.Random, key: str) -> tuple[bytes, bool]:
    """A request that is wrong in one of many ways, and whether it has an end."""
    noise = source.randbytes(source.randrange(1, 200))
    head = f"Host: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n".encode()
    event = b"ce-specversion: 1.0\r\nce-source: /s\r\nce-type: t\r\n"
    structured = b"Content-Type: application/cloudevents+json\r\n"
    chunked = b"POST /v1/events HTTP/1.1\r\n" + head + event + b"ce-id: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    broken_off = (
        noise,
        b"POST /v1/events HTTP/1.1\r\n" + noise + b"\r\n\r\n",
        # Promises more than it sends.
        request(b"/v1/events", head + event + b"ce-id: 1\r\n", noise, length=len(noise) + 1),
        chunked + b"ffff\r\n" + noise,
    )
    whole = (
        request(b"/v1/events", head + event, noise),
        request(b"/v1/events", head + event + b"ce-id: %00\r\n", noise),
        request(b"/v1/events", head + structured, noise),
        request(b"/v1/events", head + structured, b'{"specversion":"1.0","id":"' + noise.hex().encode() + b'"'),
        request(b"/v1/events", head + structured, b"[" * source.randrange(1, 5_000)),
        request(b"/v1/events?destination=" + noise.hex().encode(), head + event + b"ce-id: 1\r\n", noise),
        request(b"/v1/events:batch", head + b"Content-Type: application/json\r\n", noise),
        request(b"/v1/events:batch?atomic=maybe", head + b"Content-Type: application/json\r\n", b"[]"),
        request(b"/v1/destinations", head + b"Content-Type: application/json\r\n", noise),
        request(
            b"/v1/events", b"Host: x\r\nConnection: close\r\nAuthorization: " + noise.hex().encode() + b"\r\n", noise
        ),
        chunked + b"zz\r\n" + noise,
    )
    is_whole = source.random() < 0.7
    return source.choice(whole if is_whole else broken_off), is_whole


def request(path: bytes, head: bytes, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path, head, size, body)


async def test_without_the_database_nothing_is_accepted_and_afterwards_everything_goes_on(
    embedded_stack: EmbeddedStack, client: Client, database: str
) -> None:
    assert (await client.admit(id_="before")).status == 202
    answered: dict[str, int] = {}

    async def steadily() -> None:
        for number in range(100_000):
            reply = await client.admit(id_=f"e{number}")
            assert reply.status in (202, 503), reply
            if reply.status == 503:
                assert int(reply.headers["retry-after"]) >= 1
                assert "postgres" not in str(reply.body)
            answered[reply.body.get("event_id", f"none-{number}")] = reply.status

    sending = asyncio.create_task(steadily())
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(answered) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.to_thread(embedded_stack.postgres.kill)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while 503 not in answered.values():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for path in ("/v1/events", "/v1/deliveries", "/v1/status"):
        assert (await client.ask("GET", path)).status == 503
    await asyncio.to_thread(embedded_stack.postgres.start)
    async with asyncio.timeout(2 * DEADLINE_SECONDS):
        while (await client.admit(id_="after")).status != 202:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    sending.cancel()
    with connect(database) as connection:
        there = {row[0] for row in connection.execute("select event_id from outrider.event")}
    assert {event_id for event_id, status in answered.items() if status == 202} <= there
