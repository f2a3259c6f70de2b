"""Request bodies: read to a limit, in a time, and no more of them at once than memory is meant for."""

from __future__ import annotations

import asyncio

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
        self._request = _Request(self)
        IN_FLIGHT.set_function(lambda: self._in_flight)
        BUFFERED_BYTES.set_function(lambda: self._buffered_bytes)

    def request(self) -> _Request:
        """Count one request while the block runs. Entering raises Refusal where too many are in flight."""
        return self._request

    def body(self, request: web.BaseRequest, meter: KeyMeter, *, bytes_max: int) -> _Body:
        """The request's body, counted as buffered while the block runs. Entering raises Refusal."""
        return _Body(self, request, meter, bytes_max)

    def _begin(self) -> None:
        if self._in_flight >= self._in_flight_max:
            raise unavailable("the server is busy", 1.0)
        self._in_flight += 1

    def _end(self) -> None:
        self._in_flight -= 1

    async def _receive(self, request: web.BaseRequest, meter: KeyMeter, body: bytearray, bytes_max: int) -> None:
        """Read all of it into ``body``; what is there by then is counted, also where it ends in a Refusal."""
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
        if request.content.is_eof():
            # It came with the head, as small bodies do: nothing to wait for, and no timer to set.
            self._take(request.content.read_nowait(), meter, body, bytes_max)
        else:
            await self._read(request, meter, body, bytes_max)

    def _let_go(self, body: bytearray) -> None:
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


# Classes, because a generator for each request costs more than what they do.


class _Request:
    """Any number of requests, since it holds nothing of one."""

    __slots__ = ("_door",)

    def __init__(self, door: Door) -> None:
        self._door = door

    def __enter__(self) -> None:
        self._door._begin()

    def __exit__(self, *_: object) -> None:
        self._door._end()


class _Body:
    """One body, from its first byte to the end of the block."""

    __slots__ = ("_body", "_bytes_max", "_door", "_meter", "_request")

    def __init__(self, door: Door, request: web.BaseRequest, meter: KeyMeter, bytes_max: int) -> None:
        self._door = door
        self._request = request
        self._meter = meter
        self._bytes_max = bytes_max
        self._body = bytearray()

    async def __aenter__(self) -> bytes:
        try:
            await self._door._receive(self._request, self._meter, self._body, self._bytes_max)
        except BaseException:
            self._door._let_go(self._body)
            raise
        return bytes(self._body)

    async def __aexit__(self, *_: object) -> None:
        self._door._let_go(self._body)


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(
        Kind.TOO_LARGE,
        f"the body has more than {bytes_max} bytes",
        field="body",
        mend="send a reference to the content, or split the batch",
    )
