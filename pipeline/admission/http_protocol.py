"""The connection's side of HTTP: how many there may be, how long the first request may take, and what is no HTTP at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from aiohttp import web

from pipeline.admission.problems import Kind, Refusal

CONNECTIONS_MAX = 2_048
FIRST_REQUEST_SECONDS = 15.0
KEEPALIVE_SECONDS = 60.0
LINE_BYTES_MAX = 64 * 1024
"""A request line names up to a thousand destinations."""
HEADER_BYTES_MAX = 16 * 1024
LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read, so that the caller sees the answer."""

_log = structlog.get_logger(__name__)


class Connections:
    """How many there are."""

    def __init__(self) -> None:
        self.count = 0


class Connection(web.RequestHandler):
    """aiohttp's connection, with a bound and with problem details for what it cannot parse."""

    def __init__(self, server: web.Server, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # this is how it is turned off
            keepalive_timeout=KEEPALIVE_SECONDS,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            lingering_time=LINGER_SECONDS,
            # Bodies are taken as they are; a small one cannot grow in the parser.
            auto_decompress=False,
        )
        self._connections = connections
        self._loop_of_ours = loop
        self._first_request: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.count += 1
        if self._connections.count > CONNECTIONS_MAX:
            transport.close()
            return
        self._first_request = self._loop_of_ours.call_later(FIRST_REQUEST_SECONDS, transport.close)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.count -= 1
        self.request_begins()
        super().connection_lost(exc)

    def request_begins(self) -> None:
        """A request's head has arrived; from now on keep-alive bounds what lies between requests."""
        if self._first_request is not None:
            self._first_request.cancel()
            self._first_request = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp answers by itself: bytes that are no HTTP, or a defect of ours."""
        if status >= 500:
            _log.error("a request failed", exc_info=exc)
            refusal = Refusal(Kind.DEFECT, "the request could not be handled", mend="tell the operator")
        else:
            detail = " ".join((message or "the request is not well-formed").split())[:200]
            refusal = Refusal(Kind.MALFORMED, detail, field="request", mend="send HTTP/1.1 as RFC 9112 has it")
        response = refusal.response()
        response.force_close()
        return response


def connection_factory(server: web.Server) -> Callable[[], Connection]:
    """For ``loop.create_server``; call it in the running loop."""
    loop, connections = asyncio.get_running_loop(), Connections()
    return lambda: Connection(server, connections, loop)
