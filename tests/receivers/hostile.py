"""The hostile receiver: each behaviour of the catalogue on a port of its own, and one that behaves.

It runs in a thread with a loop of its own, so that it goes on whatever the sender's loop does; what it writes waits for the
sender to take it, so its own memory is bounded too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import warnings
from collections import Counter
from typing import Self

from tests.receivers.behaviour import OK, Behaviour, Handler, Tls, answer
from tests.receivers.catalogue import BEHAVIOURS
from tests.receivers.certificates import HOST, Authority, server_context

WELL_BEHAVED = "well_behaved"
START_SECONDS = 30.0


async def well_behaved(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await answer(reader, writer, OK)


class HostileReceiver:
    """Listens on loopback; a behaviour's port is opened when its URL is first asked for."""

    def __init__(self) -> None:
        self.authority = Authority()
        self.clients = Authority("Test CA of clients")
        self.connections: Counter[str] = Counter()
        """Connections that were accepted, by behaviour."""
        self.open_connections: Counter[str] = Counter()
        """Those that neither side has ended, by behaviour."""
        self._servers: dict[str, asyncio.Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile receiver", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)

    def url(self, name: str) -> str:
        """Where it behaves like that; ``WELL_BEHAVED`` is a name too."""
        is_https = name != WELL_BEHAVED and BEHAVIOURS[name].is_https
        return f"https://{HOST}:{self.port(name)}/{name}" if is_https else f"http://127.0.0.1:{self.port(name)}/{name}"

    def port(self, name: str) -> int:
        server = self._servers.get(name)
        if server is None:
            behaviour = BEHAVIOURS.get(name)
            handler = well_behaved if behaviour is None else behaviour.handler
            starting = asyncio.run_coroutine_threadsafe(self._start(name, handler, behaviour), self._loop)
            server = self._servers[name] = starting.result(START_SECONDS)
        return int(server.sockets[0].getsockname()[1])

    async def _start(self, name: str, handler: Handler, behaviour: Behaviour | None) -> asyncio.Server:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self.connections[name] += 1
            self.open_connections[name] += 1
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    await handler(reader, writer)
            finally:
                self.open_connections[name] -= 1
                writer.close()

        # Small buffers: what a behaviour pours out is to wait at the sender's door, not in the kernel.
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        tls = None if behaviour is None or behaviour.tls is None else self._context(behaviour.tls)
        return await asyncio.start_server(handle, sock=listener, ssl=tls)

    def _context(self, kind: Tls) -> ssl.SSLContext:
        if kind == "old":
            return _too_old(server_context(*self.authority.issue()))
        client_ca = self.clients.pem if kind == "wants_client" else None
        issued = {
            "self_signed": lambda: Authority(HOST).self_issued(),
            "other_ca": lambda: Authority("Another CA").issue(),
            "expired": lambda: self.authority.issue(from_days=-2, to_days=-1),
            "not_yet_valid": lambda: self.authority.issue(from_days=1, to_days=2),
            "wrong_host": lambda: self.authority.issue("other.example"),
        }.get(kind, self.authority.issue)
        return server_context(*issued(), client_ca=client_ca)

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _too_old(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same, with versions that nobody may speak any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context
