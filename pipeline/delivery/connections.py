"""Connections to receivers: made to a checked address, one request at a time, kept for a while, and closed at once.

A connection is given up by ``abort``: no farewell is exchanged with a receiver that may never answer it, so a socket
lives no longer than its attempt, or than KEEPALIVE_SECONDS of idleness.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import cast

from pipeline.delivery.addresses import Address
from pipeline.delivery.http_answer import AnswerParser, InvalidAnswerError

KEEPALIVE_SECONDS = 30.0
SWEEP_SECONDS = 5.0


class ConnectionLostError(Exception):
    """The connection ended before the answer's header did."""


class ConnectError(Exception):
    """The address took no connection."""


class TlsError(Exception):
    """The handshake failed, or the certificate is not the receiver's."""


@dataclass(slots=True)
class Timings:
    """Where the time of an attempt went, in seconds; None for what did not happen, or not to its end.

    A connection that was there already has neither ``connect`` nor ``tls``, an address needs no ``dns``.
    """

    dns: float | None = None
    connect: float | None = None
    tls: float | None = None
    first_byte: float | None = None
    """From handing over the request to the end of the answer's header."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a connection is good for: nothing else may use it, for it was checked and verified for this."""

    address: Address
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None
    """The name that the certificate was verified for; None without TLS."""


class Connection(asyncio.Protocol):
    """One TCP or TLS connection that carries requests in turn."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: AnswerParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._on_header: Callable[[], None] | None = None
        self.idle_since = 0.0
        self.is_lost = False

    async def exchange(self, request: bytes, answer: AnswerParser, on_header: Callable[[], None]) -> None:
        """Send a request and feed ``answer`` until it is done; ``on_header`` is called when its header has ended.

        Raises ConnectionLostError or InvalidAnswerError while the header is missing. What breaks later ends the answer.
        """
        transport = self._transport
        if transport is None or self.is_lost:
            raise ConnectionLostError("the connection is closed")
        self._answer, self._waiter, self._on_header = answer, self.loop.create_future(), on_header
        try:
            transport.write(request)
            await self._waiter
        finally:
            self._answer = self._waiter = self._on_header = None

    def is_reusable_after(self, answer: AnswerParser) -> bool:
        """Whether another request may follow: all was sent, all was read, and the receiver keeps it open."""
        transport = self._transport
        return (
            answer.is_clean
            and not self.is_lost
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )

    def abort(self) -> None:
        """Close the socket now."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Nobody has asked. What it means is not worth a guess.
            self.abort()
            return
        try:
            answer.feed(data)
        except InvalidAnswerError as error:
            self.abort()
            self._end(error)
            return
        if answer.status is not None and self._on_header is not None:
            self._on_header()
            self._on_header = None
        if answer.is_done:
            if not answer.is_clean:
                self.abort()
            self._end(None)

    def eof_received(self) -> bool:
        return False  # close: half a connection is of no use

    def connection_lost(self, exception: Exception | None) -> None:
        self.is_lost = True
        answer = self._answer
        if answer is None or answer.is_done:
            return
        try:
            answer.feed_end()
        except InvalidAnswerError as error:
            self._end(error)
            return
        if answer.status is not None:
            self._end(None)
        else:
            how = "closed" if exception is None else f"lost: {exception}"
            self._end(ConnectionLostError(f"the connection was {how} before an answer came"))

    def _end(self, error: Exception | None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)


class Pool:
    """Idle connections by endpoint, at most ``idle_max`` of them, the last used first."""

    def __init__(self, *, idle_max: int) -> None:
        self._idle_max = idle_max
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._idle_count = 0
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection that is open as far as we know."""
        connections = self._idle.get(endpoint)
        while connections:
            connection = connections.pop()
            self._idle_count -= 1
            if not connections:
                del self._idle[endpoint]
            if not connection.is_lost:
                return connection
        return None

    def give(self, endpoint: Endpoint, connection: Connection) -> None:
        """Keep it for the next request."""
        if self._idle_count >= self._idle_max:
            connection.abort()
            return
        loop = connection.loop
        connection.idle_since = loop.time()
        self._idle.setdefault(endpoint, []).append(connection)
        self._idle_count += 1
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_SECONDS, self._sweep_idle)

    def close(self) -> None:
        """Close every idle connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        self._idle_count = 0

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_SECONDS
        for endpoint in list(self._idle):
            kept = []
            for connection in self._idle[endpoint]:
                if connection.is_lost or connection.idle_since < oldest:
                    connection.abort()
                else:
                    kept.append(connection)
            self._idle_count -= len(self._idle[endpoint]) - len(kept)
            if kept:
                self._idle[endpoint] = kept
            else:
                del self._idle[endpoint]
        self._sweep = loop.call_later(SWEEP_SECONDS, self._sweep_idle) if self._idle else None


async def connect(endpoint: Endpoint, timings: Timings) -> Connection:
    """Open one, to that address and no other. Raises ConnectError or TlsError; cancelled, it leaves no socket."""
    loop = asyncio.get_running_loop()
    # Not the loop's clock: uvloop's stands still for a millisecond.
    begun = perf_counter()
    address, port = endpoint.address, endpoint.port
    plain = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(plain, (str(address), port))
    except OSError as error:
        plain.close()
        raise ConnectError(f"{address} port {port}: {error.strerror or error}") from None
    except BaseException:
        plain.close()
        raise
    connected = perf_counter()
    timings.connect = connected - begun
    try:
        _, connection = await loop.create_connection(
            Connection, sock=plain, ssl=endpoint.tls, server_hostname=endpoint.server_name
        )
    except (OSError, ssl.CertificateError, EOFError) as error:
        _close(plain)
        if endpoint.tls is None:
            raise ConnectError(f"{address} port {port}: {error}") from None
        raise TlsError(_tls_reason(error)) from None
    except BaseException:
        _close(plain)
        raise
    if endpoint.tls is not None:
        timings.tls = perf_counter() - connected
    return connection


def _close(plain: socket.socket) -> None:
    with contextlib.suppress(OSError):
        plain.close()


def _tls_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message or error}"
    if isinstance(error, ssl.SSLError):
        return f"handshake failed: {error.reason or error}"
    return f"the connection ended in the handshake: {error}" if str(error) else "the connection ended in the handshake"
