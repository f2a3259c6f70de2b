"""Request bodies: read to a limit, in a time, and no more of them at once than memory is meant for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from aiohttp import web

from pipeline.admission.key_limits import KeyMeter
from pipeline.admission.metrics import BUFFERED_BYTES, IN_FLIGHT
from pipeline.admission.problems import Kind, Refusal, unavailable

BODY_SECONDS = 20.0


class Door:
    """Counts requests in flight and bytes of bodies over all keys, and turns away what would be too many."""

    def __init__(self, *, in_flight_max: int, buffered_bytes_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._buffered_bytes_max = buffered_bytes_max
        self._in_flight = 0
        self._buffered_bytes = 0
        IN_FLIGHT.set_function(lambda: self._in_flight)
        BUFFERED_BYTES.set_function(lambda: self._buffered_bytes)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Raises Refusal where too many requests are in flight."""
        if self._in_flight >= self._in_flight_max:
            raise unavailable("the server is busy", 1.0)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    @asynccontextmanager
    async def body(self, request: web.BaseRequest, meter: KeyMeter, *, bytes_max: int) -> AsyncIterator[bytes]:
        """The request's body, counted as buffered while the block runs. Raises Refusal."""
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise Refusal(
                Kind.MEDIA_TYPE,
                f"content coding {encoding} is not understood",
                field="Content-Encoding",
                mend="send the body as it is",
            )
        if request.content_length is not None and request.content_length > bytes_max:
            raise _too_large(bytes_max)
        body = bytearray()
        try:
            if request.content.is_eof():
                # It came with the head, as small bodies do: nothing to wait for, and no timer to set.
                self._take(request.content.read_nowait(), meter, body, bytes_max)
            else:
                await self._read(request, meter, body, bytes_max)
            yield bytes(body)
        finally:
            self._buffered_bytes -= len(body)

    def _take(self, chunk: bytes, meter: KeyMeter, body: bytearray, bytes_max: int) -> None:
        meter.charge(len(chunk))
        if len(body) + len(chunk) > bytes_max:
            raise _too_large(bytes_max)
        if self._buffered_bytes + len(chunk) > self._buffered_bytes_max:
            raise unavailable("the server holds as many bodies as it may", 1.0)
        body += chunk
        self._buffered_bytes += len(chunk)

    async def _read(self, request: web.BaseRequest, meter: KeyMeter, body: bytearray, bytes_max: int) -> None:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while chunk := await request.content.readany():
                    self._take(chunk, meter, body, bytes_max)
        except TimeoutError:
            raise Refusal(
                Kind.SLOW, f"the body did not arrive within {BODY_SECONDS:g} s", field="body", mend="send it again"
            ) from None
        except (web.RequestPayloadError, aiohttp.ClientError, ConnectionError) as error:
            raise Refusal(
                Kind.MALFORMED, f"the body cannot be read: {error}", field="body", mend="send it whole"
            ) from None


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(
        Kind.TOO_LARGE,
        f"the body has more than {bytes_max} bytes",
        field="body",
        mend="send a reference to the content, or split the batch",
    )
