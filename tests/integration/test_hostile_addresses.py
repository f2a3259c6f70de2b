"""Where requests go, and where they never go: names that change, spellings that disguise, ports and schemes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_address, ip_network

import pytest

from pipeline.core.classify import Failure
from pipeline.delivery import addresses
from pipeline.delivery.addresses import LookupFailedError, Resolver
from pipeline.delivery.request_head import fixed_head, request_head
from pipeline.delivery.sender import Answer, NoAnswer, Request, Sender
from pipeline.delivery.targets import TargetRules

GOOD, BAD, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
ALLOWED = (ip_network(GOOD), ip_network(OTHER))
NAME = "rebinding.example"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def listening_on_all():
    """One port at three addresses; who is connected to is noted by address."""
    connected, writers = [], []

    async def handle(reader, writer):
        writers.append(writer)
        connected.append(writer.get_extra_info("sockname")[0])
        with suppress(ConnectionError):
            while await reader.read(65_536):
                writer.write(OK)
                await writer.drain()
        writer.close()

    async with AsyncExitStack() as stack:
        first = await asyncio.start_server(handle, GOOD, 0)
        port = first.sockets[0].getsockname()[1]
        servers = [first, *[await asyncio.start_server(handle, address, port) for address in (BAD, OTHER)]]
        for server in servers:
            stack.callback(server.close)
        yield port, connected
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn


class ChangingNames:
    """A resolver's lookup whose answer can be changed between questions, and is counted."""

    def __init__(self, *texts: str) -> None:
        self.answer = texts
        self.asked = 0

    def __call__(self, host: str):
        assert host == NAME
        self.asked += 1
        return tuple(ip_address(text) for text in self.answer)


def request_to(url, *, allowed=ALLOWED):
    try:
        fixed = fixed_head(url)
    except ValueError:
        fixed = fixed_head("http://placeholder.example/")
    head = request_head(
        fixed,
        delivery_id="dlv_1",
        attempt=1,
        content_type="text/plain",
        event_headers={},
        signature="v1,AAAA",
        timestamp=1,
        traceparent="00-1",
        body_bytes=0,
    )
    return Request(url=url, head=head, body=b"", timeout_seconds=20.0, allowed_networks=allowed)


async def test_a_name_is_looked_up_once_and_the_address_that_was_checked_is_connected_to():
    names = ChangingNames(GOOD)
    async with listening_on_all() as (port, connected), Sender(concurrency=5, resolver=Resolver(names)) as sender:
        for _ in range(3):
            result = await sender.send(request_to(f"http://{NAME}:{port}/"))
            assert isinstance(result, Answer)
            names.answer = (BAD,)
    assert names.asked == 1
    assert set(connected) == {GOOD}


async def test_a_name_that_has_changed_is_checked_again_and_its_old_connection_is_not_used(monkeypatch):
    monkeypatch.setattr(addresses, "CACHE_SECONDS", -1.0)
    monkeypatch.setattr(addresses, "STALE_SECONDS", -1.0)
    names = ChangingNames(GOOD)
    async with listening_on_all() as (port, connected), Sender(concurrency=5, resolver=Resolver(names)) as sender:
        url = f"http://{NAME}:{port}/"
        assert isinstance(await sender.send(request_to(url)), Answer)
        names.answer = (BAD,)
        refused = await sender.send(request_to(url))
        assert isinstance(refused, NoAnswer)
        assert (refused.failure, refused.request_begun) == (Failure.TARGET_REFUSED, False)
        names.answer = (OTHER,)
        assert isinstance(await sender.send(request_to(url)), Answer)
    assert connected == [GOOD, OTHER]


async def test_one_bad_address_among_good_ones_refuses_the_name():
    names = ChangingNames(GOOD, BAD)
    async with listening_on_all() as (port, connected), Sender(concurrency=5, resolver=Resolver(names)) as sender:
        result = await sender.send(request_to(f"http://{NAME}:{port}/"))
    assert isinstance(result, NoAnswer)
    assert result.failure is Failure.TARGET_REFUSED
    assert connected == []


async def test_a_kept_connection_is_not_for_a_destination_that_may_not_go_there():
    async with listening_on_all() as (port, connected), Sender(concurrency=5) as sender:
        url = f"http://{GOOD}:{port}/"
        assert isinstance(await sender.send(request_to(url)), Answer)
        result = await sender.send(request_to(url, allowed=()))
        assert isinstance(result, NoAnswer)
        assert result.failure is Failure.TARGET_REFUSED
    assert connected == [GOOD]


DISGUISES = [
    *("2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "0177.1", "127.1", "017700000001", "127.0.0.1."),
    *("localhost", "localhost.", "LOCALHOST", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]"),
    *("[64:ff9b::7f00:1]", "[2002:7f00:1::1]", "[2001:0:7f00:1::1]", "0.0.0.0", "0", "[::]", "user:pw@127.0.0.1"),
    *("good.example@127.0.0.1", "%31%32%37.0.0.1", "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021"),
]


@pytest.mark.parametrize("host", DISGUISES, ids=ascii)
async def test_no_spelling_leads_to_this_machine(host):
    async with listening_on_all() as (port, connected), Sender(concurrency=5) as sender:
        result = await sender.send(request_to(f"http://{host}:{port}/", allowed=()))
    assert isinstance(result, NoAnswer)
    # Some spellings are no name at all for this system's resolver.
    assert result.failure in (Failure.TARGET_REFUSED, Failure.DNS)
    assert result.request_begun is False
    assert connected == []


@pytest.mark.parametrize(
    ("rules", "is_sent"),
    [
        (TargetRules(), True),
        (TargetRules(allow_http=False), False),
        (TargetRules(((1, 1023),)), False),
        (TargetRules(((443, 443), (1024, 65_535))), True),
    ],
)
async def test_ports_and_schemes_are_those_of_the_settings(rules, is_sent):
    async with listening_on_all() as (port, connected), Sender(concurrency=5, rules=rules) as sender:
        result = await sender.send(request_to(f"http://{GOOD}:{port}/"))
    assert isinstance(result, Answer) is is_sent
    assert bool(connected) is is_sent
    if isinstance(result, NoAnswer):
        assert result.failure is Failure.TARGET_REFUSED
        assert "OUTRIDER_TARGET_" in result.error


async def test_a_lookup_that_hangs_ends_with_the_deadline_and_holds_up_nobody_else():
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look_up(host):
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60.0)
        raise LookupFailedError(f"{host}: no answer")

    async with listening_on_all() as (port, _), Sender(concurrency=5, resolver=Resolver(look_up)) as sender:
        hanging = [
            asyncio.create_task(sender.send(Request(f"http://{n}.example/", b"", b"", 0.5, ()))) for n in range(100)
        ]
        assert isinstance(await sender.send(request_to(f"http://{GOOD}:{port}/")), Answer)
        for result in await asyncio.gather(*hanging):
            assert isinstance(result, NoAnswer)
            assert (result.failure, result.request_begun) == (Failure.TIMEOUT, False)
            assert "no lookup within" in result.error
        released.set()
