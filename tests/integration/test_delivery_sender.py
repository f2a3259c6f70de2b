"""One request against receivers of every kind: what arrives, what is reported, and that nothing is unbounded."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network

import pytest

from pipeline.core.classify import Failure
from pipeline.delivery.http_answer import EXCERPT_BYTES_MAX, READ_BYTES_MAX
from pipeline.delivery.request_head import fixed_head, request_head
from pipeline.delivery.sender import Answer, NoAnswer, Request, Sender

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
ENDS_AT_ALL_SECONDS = 30.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """A raw TCP server; the handler may do what it likes."""
    tasks = set()

    async def handle(reader, writer):
        tasks.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def read_request(reader) -> tuple[bytes, dict[str, str], bytes]:
    """Request line, headers by lower-case name, body."""
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    headers = {}
    for line in head[1:-2]:
        name, value = line.split(b": ", 1)
        assert name.lower().decode() not in headers
        headers[name.lower().decode()] = value.decode()
    return head[0], headers, await reader.readexactly(int(headers["content-length"]))


def answering(*answers: bytes, requests: list | None = None) -> Handler:
    """Reads a request, then writes the next of these bytes; the last one is repeated."""
    given = []

    async def handler(reader, writer):
        while True:
            request = await read_request(reader)
            if requests is not None:
                requests.append(request)
            given.append(request)
            writer.write(answers[min(len(given), len(answers)) - 1])
            await writer.drain()

    return handler


def a_head(url: str, body: bytes) -> bytes:
    try:
        fixed = fixed_head(url)
    except ValueError:
        return b""  # the sender looks at the URL first
    return request_head(
        fixed,
        delivery_id="dlv_1",
        attempt=1,
        content_type="text/plain",
        event_headers={},
        signature="v1,AAAA",
        timestamp=1,
        traceparent="00-1",
        body_bytes=len(body),
    )


def heard(result) -> tuple[int, str | None, bytes]:
    """Status, Retry-After and the body's beginning."""
    assert isinstance(result, Answer), result
    return result.status, result.header("retry-after"), result.excerpt


async def send(port: int, *, body=b"body", timeout_seconds=5.0, host="127.0.0.1", sender=None, **changes):
    url = changes.pop("url", f"http://{host}:{port}/hook?a=b%20c")
    request = Request(
        **{
            "url": url,
            "head": a_head(url, body),
            "body": body,
            "timeout_seconds": timeout_seconds,
            "allowed_networks": LOOPBACK,
        }
        | changes
    )
    if sender is not None:
        return await sender.send(request)
    async with Sender(concurrency=10) as own:
        return await own.send(request)


BODIES = {
    "empty": b"",
    "json": b'{"b": 1, "a":  2}',
    "nul": b"\0\0\0",
    "not_utf8": bytes(range(256)),
    "line_ends": b"\r\n\r\n0\r\n\r\n",
    "large": os.urandom(256 * 1024),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_bytes_arrive_as_they_are(body):
    requests = []
    async with listening(answering(OK, requests=requests)) as port:
        assert heard(await send(port, body=body)) == (200, None, b"ok")
    ((line, headers, received),) = requests
    assert received == body
    assert line == b"POST /hook?a=b%20c HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{port}"
    assert (headers["content-type"], headers["webhook-id"]) == ("text/plain", "dlv_1")
    assert "cookie" not in headers


async def test_connections_are_reused_and_cookies_are_not_kept():
    requests, connections = [], []
    with_cookie = b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    handler = answering(with_cookie, requests=requests)

    async def counting(reader, writer):
        connections.append(writer)
        await handler(reader, writer)

    async with listening(counting) as port, Sender(concurrency=10) as sender:
        for _ in range(5):
            assert (await send(port, sender=sender)).status == 200
    assert len(connections) == 1
    assert all("cookie" not in headers for _, headers, _ in requests)


async def test_the_name_stays_in_host_while_the_connection_goes_to_a_checked_address():
    requests = []
    async with listening(answering(OK, requests=requests)) as port:
        # "localhost" is ::1 as well on many systems, where nobody listens: the next address is tried.
        assert heard(await send(port, host="localhost")) == (200, None, b"ok")
    assert requests[0][1]["host"] == f"localhost:{port}"


async def test_proxies_of_the_environment_are_ignored(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with listening(answering(OK)) as port:
        assert heard(await send(port)) == (200, None, b"ok")


@pytest.mark.parametrize("status", [201, 204, 301, 307, 400, 410, 429, 500, 599])
async def test_statuses_are_reported_and_redirects_not_followed(status):
    requests = []
    answer = b"HTTP/1.1 %d x\r\nlocation: /elsewhere\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n" % status
    async with listening(answering(answer, requests=requests)) as port:
        assert heard(await send(port)) == (status, "7", b"")
    assert len(requests) == 1


async def test_targets_that_are_not_allowed_are_not_connected_to():
    connections = []

    async def handler(reader, writer):
        connections.append(writer)

    async with listening(handler) as port:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            result = await send(port, host=host, allowed_networks=())
            assert isinstance(result, NoAnswer)
            assert (result.failure, result.request_begun) == (Failure.TARGET_REFUSED, False)
    assert connections == []


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "http:///path", "nonsense", "http://127.0.0.1:99999/", "http://[::1/"]
)
async def test_urls_that_are_none_are_reported(url):
    result = await send(1, url=url)
    assert isinstance(result, NoAnswer)
    assert result.request_begun is False


async def test_a_closed_port_is_a_failed_connection():
    async with listening(answering(OK)) as port:
        pass
    result = await send(port)
    assert isinstance(result, NoAnswer)
    assert (result.failure, result.request_begun) == (Failure.CONNECT, False)


async def test_plaintext_where_tls_is_expected_is_a_tls_failure():
    async def handler(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async with listening(handler) as port:
        result = await send(port, url=f"https://localhost:{port}/")
    assert isinstance(result, NoAnswer)
    assert (result.failure, result.request_begun) == (Failure.TLS, False)


async def forever(writer, piece: bytes, pause_seconds: float = 0.0) -> None:
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_seconds)


async def no_answer(reader, writer):
    await read_request(reader)
    await asyncio.sleep(3600)


async def reads_nothing(reader, writer):
    await asyncio.sleep(3600)


async def closes_at_once(reader, writer):
    await read_request(reader)


async def resets(reader, writer):
    await read_request(reader)
    writer.transport.abort()


async def half_a_status_line(reader, writer):
    await read_request(reader)
    writer.write(b"HTTP/1.1 20")
    await writer.drain()


async def not_http(reader, writer):
    await read_request(reader)
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    await writer.drain()


async def drips_a_status_line(reader, writer):
    await read_request(reader)
    await forever(writer, b"H", 0.05)


async def drips_headers(reader, writer):
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await forever(writer, b"a: b\r\n", 0.05)


async def endless_header(reader, writer):
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    await forever(writer, b"a" * 65_536)


async def a_hundred_thousand_headers(reader, writer):
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: v\r\n" % n for n in range(100_000)) + b"\r\n")
    await writer.drain()


async def flood_of_100s(reader, writer):
    await read_request(reader)
    await forever(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.01)


async def two_lengths(reader, writer):
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nok")
    await writer.drain()


@pytest.mark.parametrize(
    ("handler", "failures"),
    [
        (no_answer, {Failure.TIMEOUT}),
        (closes_at_once, {Failure.CONNECTION_LOST}),
        (resets, {Failure.CONNECTION_LOST}),
        (half_a_status_line, {Failure.CONNECTION_LOST, Failure.INVALID_ANSWER}),
        (not_http, {Failure.INVALID_ANSWER}),
        (drips_a_status_line, {Failure.TIMEOUT, Failure.INVALID_ANSWER}),
        (drips_headers, {Failure.TIMEOUT, Failure.INVALID_ANSWER}),
        (endless_header, {Failure.INVALID_ANSWER}),
        (a_hundred_thousand_headers, {Failure.INVALID_ANSWER}),
        (flood_of_100s, {Failure.INVALID_ANSWER}),
        (two_lengths, {Failure.INVALID_ANSWER}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_receiver_that_misbehaves_is_reported_within_the_deadline(handler, failures):
    async with listening(handler) as port, Sender(concurrency=10) as sender:
        async with asyncio.timeout(ENDS_AT_ALL_SECONDS):
            result = await send(port, sender=sender, timeout_seconds=1.0)
        assert isinstance(result, NoAnswer)
        assert result.failure in failures
        assert result.request_begun is True
        assert result.error


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_receiver_that_reads_nothing_cannot_hold_a_large_body_for_ever():
    async with listening(reads_nothing) as port:
        result = await send(port, body=os.urandom(8 * 1024 * 1024), timeout_seconds=0.5)
    assert isinstance(result, NoAnswer)
    assert (result.failure, result.request_begun) == (Failure.TIMEOUT, True)


def with_body(head: bytes, write_body) -> Handler:
    async def handler(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        await write_body(writer)

    return handler


async def endless_chunks(writer):
    await forever(writer, b"1000\r\n" + b"c" * 0x1000 + b"\r\n")


async def endless_length(writer):
    await forever(writer, b"d" * 65_536)


async def drip(writer):
    await forever(writer, b"e", 0.05)


async def cut_off(writer):
    writer.write(b"f" * 10)
    await writer.drain()


async def bad_chunk(writer):
    writer.write(b"2\r\nhh\r\nzz\r\nnonsense")
    await writer.drain()


@pytest.mark.parametrize(
    ("head", "write_body", "begins_with"),
    [
        (b"transfer-encoding: chunked\r\n", endless_chunks, b"c" * EXCERPT_BYTES_MAX),
        (b"content-length: 99999999999\r\n", endless_length, b"d" * EXCERPT_BYTES_MAX),
        (b"connection: close\r\n", endless_length, b"d" * EXCERPT_BYTES_MAX),
        (b"content-length: 1000\r\n", cut_off, b"f" * 10),
        (b"transfer-encoding: chunked\r\n", bad_chunk, b"hh"),
    ],
    ids=["endless_chunks", "endless_length", "until_close", "cut_off", "bad_chunk"],
)
async def test_a_body_that_misbehaves_does_not_change_the_status(head, write_body, begins_with):
    async with listening(with_body(head, write_body)) as port:
        result = await send(port, timeout_seconds=5.0)
    assert heard(result) == (200, None, begins_with)


async def test_a_body_that_drips_ends_with_the_deadline_and_the_status_counts():
    async with listening(with_body(b"content-length: 1000\r\n", drip)) as port:
        async with asyncio.timeout(ENDS_AT_ALL_SECONDS):
            result = await send(port, timeout_seconds=0.7)
    assert isinstance(result, Answer)
    assert result.status == 200
    assert result.excerpt.strip(b"e") == b""


async def test_a_compressed_bomb_is_not_decompressed():
    bomb = zlib.compress(b"\0" * 100_000_000, 9, wbits=31)
    head = b"content-encoding: gzip\r\ncontent-length: %d\r\n" % len(bomb)

    async def write_body(writer):
        writer.write(bomb)
        await writer.drain()

    async with listening(with_body(head, write_body)) as port:
        result = await send(port)
    assert heard(result) == (200, None, bomb[:EXCERPT_BYTES_MAX])


async def test_header_values_that_are_not_ascii_do_no_harm():
    answer = b"HTTP/1.1 503 \xff\xfe\r\nretry-after: \xff\r\nx: \xc3\xa9\r\ncontent-length: 0\r\n\r\n"
    async with listening(answering(answer)) as port:
        result = await send(port)
    assert result.status == 503 if isinstance(result, Answer) else result.failure is Failure.INVALID_ANSWER


async def test_a_receiver_that_answers_early_is_heard():
    async def handler(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        await reader.read()  # to the end, so that closing does not reset the answer away

    async with listening(handler) as port:
        result = await send(port, body=os.urandom(1024 * 1024))
    assert heard(result) == (413, None, b"")


async def test_a_cancelled_request_is_cancelled():
    async with listening(no_answer) as port:
        task = asyncio.create_task(send(port, timeout_seconds=60.0))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_is_read_of_a_body_is_bounded():
    assert EXCERPT_BYTES_MAX <= READ_BYTES_MAX
    sent = 0

    async def count(writer):
        nonlocal sent
        while True:
            writer.write(b"g" * 65_536)
            await writer.drain()
            sent += 65_536

    async with listening(with_body(b"content-length: 99999999999\r\n", count)) as port:
        assert (await send(port)).status == 200
    # What was read, and what the two sockets' buffers hold.
    assert sent < 16 * 1024 * 1024
