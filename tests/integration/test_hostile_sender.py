"""The sender against every behaviour of the hostile receiver, in the event loop that the worker runs in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import resource
import socket
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest
import uvloop

from pipeline.delivery import connections
from pipeline.delivery.http_answer import EXCERPT_BYTES_MAX
from pipeline.delivery.request_head import fixed_head, request_head
from pipeline.delivery.sender import Answer, Request, Sender
from pipeline.delivery.settling import classify
from pipeline.delivery.tls import TlsSettings
from tests.receivers.catalogue import BEHAVIOURS
from tests.receivers.hostile import WELL_BEHAVED, HostileReceiver

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
TIMEOUT_SECONDS = 1.0
HUNGRY = (
    *("body_of_a_terabyte", "endless_chunks", "endless_chunks_of_one_byte", "endless_trailers", "gzip_bomb_in_chunks"),
    *("header_without_end", "headers_without_end", "a_hundred_thousand_headers", "flood_of_100_continue"),
    *(
        "second_answer_that_nobody_asked_for",
        "upgrade_that_nobody_asked_for",
        "tls_self_signed",
        "tls_handshake_is_cut",
    ),
)
ENDS_AT_ALL_SECONDS = 60.0
BODY = b'{"b": 1,  "a": 2}'
MIB = 1024 * 1024


def in_the_workers_loop(test):
    """Run a coroutine function as a test in uvloop, whose reads and whose TLS are not asyncio's."""

    @functools.wraps(test)
    def run(*arguments, **named):
        uvloop.run(test(*arguments, **named))

    return run


@pytest.fixture(scope="module")
def receiver():
    with HostileReceiver() as receiver:
        yield receiver


def request_to(receiver, name, **changes):
    return a_request(receiver.url(name), **{"tls": TlsSettings(ca=receiver.authority.pem)} | changes)


def a_request(url, *, tls, body=BODY, timeout_seconds=TIMEOUT_SECONDS):
    head = request_head(
        fixed_head(url),
        delivery_id="dlv_1",
        attempt=1,
        content_type="application/json",
        event_headers={},
        signature="v1,AAAA",
        timestamp=1,
        traceparent="00-1",
        body_bytes=len(body),
    )
    return Request(url=url, head=head, body=body, timeout_seconds=timeout_seconds, allowed_networks=LOOPBACK, tls=tls)


async def until(condition, what):
    for _ in range(int(ENDS_AT_ALL_SECONDS * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(what)


@pytest.mark.parametrize("name", BEHAVIOURS)
@in_the_workers_loop
async def test_an_attempt_ends_as_documented_and_its_neighbours_on_time(receiver, name):
    behaviour = BEHAVIOURS[name]
    async with Sender(concurrency=10) as sender, asyncio.timeout(ENDS_AT_ALL_SECONDS):
        attempt = asyncio.create_task(sender.send(request_to(receiver, name)))
        # While it lasts, others are served; were the loop held up, these would run into their own deadlines.
        neighbours = 0
        while not attempt.done() or neighbours < 3:
            result = await sender.send(request_to(receiver, WELL_BEHAVED, timeout_seconds=20.0))
            assert (result.status, result.excerpt) == (200, b"ok")
            neighbours += 1
            await asyncio.sleep(0.01)
        result = await attempt
    line = classify(result)
    assert line.outcome in behaviour.outcomes, result
    if len(behaviour.outcomes) == 1:
        assert line.ambiguous is behaviour.is_ambiguous
    if isinstance(result, Answer):
        assert len(result.excerpt) <= EXCERPT_BYTES_MAX
    else:
        assert 0 < len(result.error) <= 500
        assert "\n" not in result.error
    await until(lambda: receiver.open_connections[name] <= 0 or name == "never_reads", "the receiver's side is closed")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture
def receiver_elsewhere():
    """URLs and CA of a receiver in a process of its own, so that what is counted here is the sender's alone."""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.receivers"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield json.loads(process.stdout.readline())
        process.stdin.close()


@in_the_workers_loop
async def test_memory_and_sockets_are_bounded_over_many_attempts(receiver_elsewhere):
    tls = TlsSettings(ca=receiver_elsewhere["ca"])
    urls = [receiver_elsewhere["urls"][name] for name in HUNGRY]
    async with Sender(concurrency=100) as sender:

        async def all_at_once(times):
            requests = [a_request(url, tls=tls, timeout_seconds=20.0) for url in urls] * times
            return await asyncio.gather(*(sender.send(request) for request in requests))

        for _ in range(2):
            await all_at_once(4)
        before_bytes, before_descriptors = resident_bytes(), open_descriptors()
        for _ in range(5):
            await all_at_once(4)
        # 260 attempts: were each to keep one read of 64 KiB, it would be 16 MiB.
        assert resident_bytes() - before_bytes < 12 * MIB
        assert open_descriptors() <= before_descriptors


@in_the_workers_loop
async def test_a_connection_that_was_closed_meanwhile_is_not_used_again(receiver):
    name = "closes_after_each_answer_without_saying_so"
    async with Sender(concurrency=10) as sender:
        for _ in range(5):
            assert (await sender.send(request_to(receiver, name, timeout_seconds=20.0))).status == 200
            await until(lambda: receiver.open_connections[name] == 0, "the receiver has closed it")
            # The end of the connection has to arrive here, too.
            await asyncio.sleep(0.05)


@in_the_workers_loop
async def test_only_one_connection_is_made_to_a_receiver_that_keeps_it(receiver):
    for name, tls in ((WELL_BEHAVED, TlsSettings()), ("tls_as_it_should_be", TlsSettings(ca=receiver.authority.pem))):
        before = receiver.connections[name]
        async with Sender(concurrency=10) as sender:
            first = await sender.send(request_to(receiver, name, tls=tls, timeout_seconds=20.0))
            rest = [await sender.send(request_to(receiver, name, tls=tls, timeout_seconds=20.0)) for _ in range(5)]
        assert receiver.connections[name] == before + 1
        assert first.timings.connect is not None
        assert (first.timings.tls is not None) is (name != WELL_BEHAVED)
        assert all(result.timings.connect is None and result.timings.first_byte for result in rest)


@in_the_workers_loop
async def test_a_connection_is_kept_for_those_alone_whom_it_was_verified_for(receiver):
    """Another CA, another client certificate, or none: each is a connection of its own, and judged by itself."""
    name = "tls_as_it_should_be"
    certificate, key = receiver.clients.issue("outrider")
    async with Sender(concurrency=10) as sender:
        trusted = TlsSettings(ca=receiver.authority.pem)
        assert (await sender.send(request_to(receiver, name, tls=trusted, timeout_seconds=20.0))).status == 200
        system = await sender.send(request_to(receiver, name, tls=TlsSettings(), timeout_seconds=20.0))
        assert classify(system).outcome == "tls_failed"
        before = receiver.connections[name]
        shown = TlsSettings(receiver.authority.pem, certificate, key)
        assert (await sender.send(request_to(receiver, name, tls=shown, timeout_seconds=20.0))).status == 200
        assert receiver.connections[name] == before + 1


@in_the_workers_loop
async def test_a_client_certificate_is_shown_to_who_asks_for_it(receiver):
    certificate, key = receiver.clients.issue("outrider")
    shown = TlsSettings(receiver.authority.pem, certificate, key)
    async with Sender(concurrency=1) as sender:
        result = await sender.send(
            request_to(receiver, "tls_that_wants_a_client_certificate", tls=shown, timeout_seconds=20.0)
        )
    assert result.status == 200


@pytest.mark.parametrize(
    "tls",
    [
        TlsSettings(ca="nonsense"),
        TlsSettings(ca="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        TlsSettings(None, "nonsense", "nonsense"),
        TlsSettings(None, "nonsense", None),
    ],
)
@in_the_workers_loop
async def test_certificates_that_are_none_are_reported_without_their_content(receiver, tls):
    async with Sender(concurrency=1) as sender:
        result = await sender.send(request_to(receiver, "tls_as_it_should_be", tls=tls))
    assert classify(result).outcome == "tls_failed"
    assert result.request_begun is False
    assert "nonsense" not in result.error


@pytest.mark.parametrize("name", ["body_drips", "body_never_comes"])
@in_the_workers_loop
async def test_a_body_is_waited_for_less_long_than_an_answer(receiver, name, monkeypatch):
    monkeypatch.setattr("pipeline.delivery.sender.BODY_SECONDS_MAX", 0.1)
    async with Sender(concurrency=1) as sender, asyncio.timeout(ENDS_AT_ALL_SECONDS):
        assert (await sender.send(request_to(receiver, name, timeout_seconds=3_600.0))).status == 200


@in_the_workers_loop
async def test_a_connection_that_is_never_taken_ends_with_the_deadline_and_leaves_no_socket():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        # The kernel takes as many as the backlog has room for; after them, nobody is answered.
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        before = open_descriptors()
        async with Sender(concurrency=1) as sender, asyncio.timeout(ENDS_AT_ALL_SECONDS):
            url = f"http://127.0.0.1:{full.getsockname()[1]}/"
            results = await asyncio.gather(
                *(sender.send(a_request(url, tls=TlsSettings(), timeout_seconds=0.5)) for _ in range(10))
            )
        assert {classify(result).outcome for result in results} == {"timeout_before_sent"}
        assert all(result.error == "no connection within 0.5 s" for result in results)
        await until(lambda: open_descriptors() <= before, "their sockets are closed")


@in_the_workers_loop
async def test_no_more_connections_are_kept_than_the_worker_has_places(receiver):
    async with Sender(concurrency=2) as sender:
        requests = [request_to(receiver, WELL_BEHAVED, timeout_seconds=20.0) for _ in range(10)]
        results = await asyncio.gather(*(sender.send(request) for request in requests))
        assert {result.status for result in results} == {200}
        await until(lambda: receiver.open_connections[WELL_BEHAVED] <= 2, "two are kept")
    await until(lambda: receiver.open_connections[WELL_BEHAVED] == 0, "none is kept when the sender is closed")


@in_the_workers_loop
async def test_an_idle_connection_is_given_up(receiver, monkeypatch):
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    async with Sender(concurrency=5) as sender:
        assert (await sender.send(request_to(receiver, WELL_BEHAVED, timeout_seconds=20.0))).status == 200
        await until(lambda: receiver.open_connections[WELL_BEHAVED] == 0, "it is closed")
        # And the next request finds a way all the same.
        assert (await sender.send(request_to(receiver, WELL_BEHAVED, timeout_seconds=20.0))).status == 200
