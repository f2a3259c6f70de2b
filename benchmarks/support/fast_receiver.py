"""A receiver that costs as little as can be: `python -m benchmarks.support.fast_receiver PORT`.

- POST /ok/...: 200 at once; counted. POST /timed/...: also the monotonic clock of its first receipt, by webhook-id.
- POST /hang/...: never answered.
- GET /count: requests answered so far, as text. GET /receipts: the clocks as JSON, forgotten with the answer.

No HTTP library: two cores hold what is measured and this, and what the receiver costs, neither can use.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Final, cast

import uvloop

_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Book:
    """What came so far."""

    def __init__(self) -> None:
        self.count = 0
        self.receipts: dict[str, float] = {}


class Exchange(asyncio.Protocol):
    """One connection. Requests come one after the other, as a client that waits for answers sends them."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < length:
            return
        self._data = b""
        if head.startswith(b"POST /hang"):
            return
        if head.startswith(b"GET"):
            self._tell(head)
            return
        self._book.count += 1
        if head.startswith(b"POST /timed"):
            at = head.lower().find(b"\r\nwebhook-id:")
            self._book.receipts.setdefault(head[at + 13 :].split(b"\r\n", 1)[0].strip().decode(), time.monotonic())
        self._transport.write(_OK)

    def _tell(self, head: bytes) -> None:
        if head.startswith(b"GET /receipts"):
            text = json.dumps(self._book.receipts).encode()
            self._book.receipts = {}
        else:
            text = str(self._book.count).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(text), text)
        )
        self._transport.close()


async def serve(port: int) -> None:
    book = Book()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Exchange(book), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
