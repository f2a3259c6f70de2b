"""One way to misbehave: what the receiver does with a connection, and what an attempt at it must end as."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Tls = Literal["right", "self_signed", "expired", "not_yet_valid", "wrong_host", "other_ca", "wants_client", "old"]

HEAD = b"HTTP/1.1 200 OK\r\n"
OK = HEAD + b"content-length: 2\r\n\r\nok"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """``outcomes``: those that an attempt may have. ``tls``: how the connection is secured before ``handler`` sees it."""

    name: str
    handler: Handler
    outcomes: frozenset[str]
    is_ambiguous: bool
    tls: Tls | None = None
    is_https: bool = False


class Catalogue:
    """Behaviours by name, in the order in which they were written down."""

    def __init__(self) -> None:
        self.behaviours: dict[str, Behaviour] = {}

    def add(
        self, *outcomes: str, ambiguous: bool, tls: Tls | None = None, https: bool = False
    ) -> Callable[[Handler], Handler]:
        """Decorator: the handler's name becomes the behaviour's."""

        def added(handler: Handler) -> Handler:
            name = handler.__name__
            if name in self.behaviours:
                raise ValueError(f"two behaviours are called {name}")
            self.behaviours[name] = Behaviour(
                name=name,
                handler=handler,
                outcomes=frozenset(outcomes),
                is_ambiguous=ambiguous,
                tls=tls,
                is_https=https or tls is not None,
            )
            return handler

        return added


async def read_head(reader: asyncio.StreamReader) -> dict[str, str]:
    """Headers of a request by lower-case name; its body stays unread."""
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    pairs = (line.decode("latin-1").split(": ", 1) for line in lines[1:-2])
    return {name.lower(): value for name, value in pairs}


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The body of a request."""
    headers = await read_head(reader)
    return await reader.readexactly(int(headers["content-length"]))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *pieces: bytes) -> None:
    """Read a request whole, and write."""
    await read_request(reader)
    await write(writer, *pieces)


async def write(writer: asyncio.StreamWriter, *pieces: bytes) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()


async def forever(writer: asyncio.StreamWriter, piece: bytes, *, pause_seconds: float = 0.0) -> None:
    """Write the same again and again, as fast as it is taken, until the other side has gone."""
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_seconds)


async def stay(reader: asyncio.StreamReader) -> None:
    """Do nothing until the other side has gone."""
    while await reader.read(65_536):
        pass


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST."""
    plain: socket.socket = writer.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
