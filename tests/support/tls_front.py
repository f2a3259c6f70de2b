"""PostgreSQL behind TLS: the embedded server is built without, so this front speaks it and passes the rest on.

A client asks for TLS first, with a message of its own; what follows its handshake is PostgreSQL's usual protocol. Who
does not ask is turned away.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

SSL_REQUEST = bytes([0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F])
CHUNK = 64 * 1024
START_SECONDS = 30.0


class TlsFront:
    """Listens on a free port of the loopback address while the block runs, in a thread of its own."""

    def __init__(self, host: str, port: int, chain: Path) -> None:
        self._target = host, port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(chain)
        self._listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tls front", daemon=True)
        self.port = 0
        self.encrypted = 0
        """Connections whose handshake went well."""
        self.turned_away = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(START_SECONDS), "the front does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()  # the connections end with the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                if await reader.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
                    self.turned_away += 1
                    return
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self._context)
                self.encrypted += 1
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                try:
                    await asyncio.wait(
                        [
                            asyncio.ensure_future(_pump(reader, far_writer)),
                            asyncio.ensure_future(_pump(far_reader, writer)),
                        ],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    far_writer.close()
            finally:
                writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
