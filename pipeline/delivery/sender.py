"""One HTTP request, whatever the receiver does: bounded in time, memory and sockets, and never an exception.

There is one session for all destinations. Redirects, cookies and proxies from the environment are off, and
answers are not decompressed. One deadline covers the lookup, the connection, the request and the answer; nothing extends it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace, TracebackType
from typing import Self

import aiohttp
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

EXCERPT_BYTES_MAX = 4096
READ_BYTES_MAX = 64 * 1024
ERROR_LENGTH_MAX = 500
KEEPALIVE_SECONDS = 30.0
URLS_CACHED = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """A POST. ``timeout_seconds`` is the one deadline of the whole exchange."""

    url: str
    headers: dict[str, str]
    body: bytes
    timeout_seconds: float
    allowed_networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A final status arrived. ``excerpt`` is the beginning of the body, as far as it came in time."""

    status: int
    retry_after: str | None
    excerpt: bytes


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No status arrived. ``request_begun``: the receiver may have read the request, so it may have applied it."""

    failure: Failure
    request_begun: bool
    error: str


class _Progress:
    """How far an exchange has come; what is known already counts, however it ends."""

    __slots__ = ("begun", "excerpt", "retry_after", "status")

    def __init__(self) -> None:
        self.begun = False
        self.status: int | None = None
        self.retry_after: str | None = None
        self.excerpt = bytearray()

    def result(self, failure: Failure, error: str) -> Answer | NoAnswer:
        if self.status is None:
            return NoAnswer(failure, self.begun, error)
        return Answer(self.status, self.retry_after, bytes(self.excerpt))


class Sender:
    """The shared session. Open it with ``async with``."""

    def __init__(self, *, concurrency: int) -> None:
        """``concurrency``: requests that are ever sent at once."""
        self._concurrency = concurrency
        self._resolver = Resolver()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # The connector is given addresses only, so it never looks up a name of its own.
            connector=aiohttp.TCPConnector(
                limit=self._concurrency, limit_per_host=0, keepalive_timeout=KEEPALIVE_SECONDS, use_dns_cache=False
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[_tracing()],
            trust_env=False,
            auto_decompress=False,
            raise_for_status=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, request: Request) -> Answer | NoAnswer:
        """Send it once, to the first of the name's addresses that takes the connection. Raises only CancelledError."""
        progress = _Progress()
        try:
            async with asyncio.timeout(request.timeout_seconds):
                await self._send(request, progress)
        except TimeoutError:
            stage = "answer" if progress.begun else "connection"
            return progress.result(Failure.TIMEOUT, f"no {stage} within {request.timeout_seconds:g} s")
        except Exception as error:
            return progress.result(_failure_of(error), _describe(error))
        return progress.result(Failure.INVALID_ANSWER, "no status")

    async def _send(self, request: Request, progress: _Progress) -> None:
        url = _parsed(request.url)
        host = url.raw_host or ""
        addresses = checked(await self._resolver.addresses(host), request.allowed_networks)
        share = request.timeout_seconds / len(addresses)
        for address in addresses[:-1]:
            try:
                await self._post(request, url, address, progress, connect_seconds=share)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                # Before the first byte of the request another address may be tried; after it, never.
                if progress.begun:
                    raise
            else:
                return
        await self._post(request, url, addresses[-1], progress, connect_seconds=None)

    async def _post(
        self, request: Request, url: URL, address: Address, progress: _Progress, *, connect_seconds: float | None
    ) -> None:
        if self._session is None:
            raise RuntimeError("the sender is not open")
        async with self._session.post(
            url.with_host(str(address)),
            data=request.body,
            # The receiver sees the name that was configured; only the socket knows the address.
            headers={"host": _host_header(url), **request.headers},
            server_hostname=url.raw_host if url.scheme == "https" else None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            trace_request_ctx=progress,
        ) as response:
            progress.status = response.status
            progress.retry_after = response.headers.get("retry-after")
            if not await _read_to_end(response, progress.excerpt):
                response.close()


async def _read_to_end(response: aiohttp.ClientResponse, excerpt: bytearray) -> bool:
    """Keep the body's beginning; whether the body ended within what is read at most. Only then is the connection reused."""
    read_bytes = 0
    while chunk := await response.content.readany():
        read_bytes += len(chunk)
        excerpt += chunk[: EXCERPT_BYTES_MAX - len(excerpt)]
        if read_bytes > READ_BYTES_MAX:
            return False
    return True


def _tracing() -> aiohttp.TraceConfig:
    tracing = aiohttp.TraceConfig()

    async def begun(
        session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestHeadersSentParams
    ) -> None:
        # Called before the headers go to the socket: from here on the receiver may have them.
        context.trace_request_ctx.begun = True

    tracing.on_request_headers_sent.append(begun)
    return tracing


@lru_cache(maxsize=URLS_CACHED)
def _parsed(text: str) -> URL:
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise TargetRefusedError(f"{text} is not an http or https URL with a host")
    return url


def _host_header(url: URL) -> str:
    host = url.host_subcomponent or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


def _failure_of(error: Exception) -> Failure:
    # The order matters: aiohttp's TLS errors are connector errors too.
    failures: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Failure], ...] = (
        (TargetRefusedError, Failure.TARGET_REFUSED),
        (LookupFailedError, Failure.DNS),
        ((aiohttp.ClientSSLError, ssl.SSLError, ssl.CertificateError), Failure.TLS),
        (aiohttp.ClientConnectorError, Failure.CONNECT),
        ((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError), Failure.CONNECTION_LOST),
    )
    # The rest is what aiohttp, or Python below it, makes of bytes that are not HTTP.
    return next((failure for kinds, failure in failures if isinstance(error, kinds)), Failure.INVALID_ANSWER)


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:ERROR_LENGTH_MAX] if text else type(error).__name__
