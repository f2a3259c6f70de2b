"""One HTTP request, whatever the receiver does: bounded in time, memory and sockets, and never an exception.

There are no redirects, cookies or proxies here, and answers are not decompressed: what is not written cannot be talked
into anything. One deadline covers the lookup, the connection, the request and the answer; nothing extends it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from time import perf_counter
from types import TracebackType
from typing import Self

from yarl import URL

from pipeline.core.classify import Failure
from pipeline.delivery.addresses import (
    Address,
    LookupFailedError,
    Network,
    Resolver,
    TargetRefusedError,
    checked,
)
from pipeline.delivery.connections import (
    ConnectError,
    Connection,
    ConnectionLostError,
    Endpoint,
    Pool,
    Timings,
    TlsError,
    connect,
)
from pipeline.delivery.http_answer import AnswerParser, InvalidAnswerError
from pipeline.delivery.targets import TargetRules
from pipeline.delivery.tls import SYSTEM_TRUST, TlsSettings, TlsSettingsError, context_of

ERROR_LENGTH_MAX = 500
# The status decides; the body is evidence, and waited for no longer than this.
BODY_SECONDS_MAX = 5.0
URLS_CACHED = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """A POST: ``head`` is all before the body, up to and with the empty line; see ``request_head``."""

    url: str
    head: bytes
    body: bytes
    timeout_seconds: float
    """The one deadline of the whole exchange."""
    allowed_networks: tuple[Network, ...]
    tls: TlsSettings = SYSTEM_TRUST


@dataclass(frozen=True, slots=True)
class Answer:
    """A final status arrived. ``excerpt`` is the beginning of the body, as far as it came in time."""

    status: int
    headers: list[tuple[str, str]]
    excerpt: bytes
    timings: Timings = field(default_factory=Timings, compare=False)

    def header(self, name: str) -> str | None:
        """The first value under this name, which is in lower case."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No status arrived. ``request_begun``: the receiver may have read the request, so it may have applied it."""

    failure: Failure
    request_begun: bool
    error: str
    timings: Timings = field(default_factory=Timings, compare=False)


class _Progress:
    """How far an exchange has come; what is known already counts, however it ends."""

    __slots__ = ("answer", "begun", "stage", "timings")

    def __init__(self) -> None:
        self.begun = False
        self.stage = "lookup"
        self.timings = Timings()
        self.answer = AnswerParser()

    def result(self, failure: Failure, error: str) -> Answer | NoAnswer:
        answer = self.answer
        if answer.status is None:
            return NoAnswer(failure, self.begun, error[:ERROR_LENGTH_MAX], self.timings)
        return Answer(answer.status, answer.headers, answer.excerpt, self.timings)


class Sender:
    """Sends for all destinations over one pool. Open it with ``async with``."""

    def __init__(self, *, concurrency: int, rules: TargetRules | None = None, resolver: Resolver | None = None) -> None:
        """``concurrency``: connections kept at most; ``rules``: schemes and ports that may be sent to, all by default."""
        self._rules = rules or TargetRules()
        self._resolver = resolver or Resolver()
        self._pool = Pool(idle_max=concurrency)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    async def send(self, request: Request) -> Answer | NoAnswer:
        """Send it once, to the first of the name's addresses that takes the connection. Raises only CancelledError."""
        progress = _Progress()
        try:
            async with asyncio.timeout(request.timeout_seconds) as deadline:
                await self._send(request, progress, deadline)
        except TimeoutError:
            return progress.result(Failure.TIMEOUT, f"no {progress.stage} within {request.timeout_seconds:g} s")
        except Exception as error:
            return progress.result(_failure_of(error), str(error) or repr(error))
        return progress.result(Failure.INVALID_ANSWER, "no status")

    async def _send(self, request: Request, progress: _Progress, deadline: asyncio.Timeout) -> None:
        url = _parsed(request.url)
        self._rules.check(url.scheme, url.port or 0)
        host = url.raw_host or ""
        begun = perf_counter()
        found, was_looked_up = await self._resolver.addresses(host)
        if was_looked_up:
            progress.timings.dns = perf_counter() - begun
        addresses = checked(found, request.allowed_networks)
        endpoints = _endpoints(url, addresses, request.tls)
        progress.stage = "connection"
        for endpoint in endpoints:
            connection = self._pool.take(endpoint)
            if connection is not None:
                break
        else:
            endpoint, connection = await self._connect(endpoints, request.timeout_seconds, progress)
        await self._exchange(request, endpoint, connection, progress, deadline)

    async def _connect(
        self, endpoints: tuple[Endpoint, ...], timeout_seconds: float, progress: _Progress
    ) -> tuple[Endpoint, Connection]:
        """The first that connects; each but the last has its share of the time."""
        share = timeout_seconds / len(endpoints)
        for endpoint in endpoints[:-1]:
            try:
                async with asyncio.timeout(share):
                    return endpoint, await connect(endpoint, progress.timings)
            except (ConnectError, TimeoutError):
                continue
        return endpoints[-1], await connect(endpoints[-1], progress.timings)

    async def _exchange(
        self,
        request: Request,
        endpoint: Endpoint,
        connection: Connection,
        progress: _Progress,
        deadline: asyncio.Timeout,
    ) -> None:
        loop = connection.loop
        begun = perf_counter()

        def header_has_come() -> None:
            progress.timings.first_byte = perf_counter() - begun
            if not (progress.answer.is_done or deadline.expired()):
                now = loop.time()
                deadline.reschedule(min(deadline.when() or now, now + BODY_SECONDS_MAX))

        progress.stage = "answer"
        # Before the first byte goes to the socket: from here on the receiver may have it.
        progress.begun = True
        is_reusable = False
        try:
            await connection.exchange(request.head + request.body, progress.answer, header_has_come)
            is_reusable = connection.is_reusable_after(progress.answer)
        finally:
            if is_reusable:
                self._pool.give(endpoint, connection)
            else:
                connection.abort()


@lru_cache(maxsize=URLS_CACHED)
def _parsed(text: str) -> URL:
    try:
        url = URL(text)
        _ = url.port
    except ValueError as error:
        raise TargetRefusedError(f"{text} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise TargetRefusedError(f"{text} is not an http or https URL with a host")
    return url


@lru_cache(maxsize=URLS_CACHED)
def _endpoints(url: URL, addresses: tuple[Address, ...], tls: TlsSettings) -> tuple[Endpoint, ...]:
    is_tls = url.scheme == "https"
    context = context_of(tls) if is_tls else None
    # A name with a dot at its end is the same name, and certificates are made out without it.
    server_name = (url.raw_host or "").rstrip(".") if is_tls else None
    return tuple(Endpoint(address, url.port or 0, context, server_name) for address in addresses)


_FAILURES: tuple[tuple[type[Exception], Failure], ...] = (
    (TargetRefusedError, Failure.TARGET_REFUSED),
    (LookupFailedError, Failure.DNS),
    (TlsError, Failure.TLS),
    (TlsSettingsError, Failure.TLS),
    (ConnectError, Failure.CONNECT),
    (ConnectionLostError, Failure.CONNECTION_LOST),
    (InvalidAnswerError, Failure.INVALID_ANSWER),
    (OSError, Failure.CONNECTION_LOST),
)


def _failure_of(error: Exception) -> Failure:
    return next((failure for kind, failure in _FAILURES if isinstance(error, kind)), Failure.INVALID_ANSWER)
