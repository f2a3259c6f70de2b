"""A TCP proxy that fails as networks do: slow, silent in the middle of a connection, or answering for the server.

It stands between one client and one server of a test, in threads of its own, with at most CONNECTIONS_MAX connections.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pipeline.stack.ports import HOST

CONNECTIONS_MAX = 50
CHUNK_BYTES = 16 * 1024
POLL_SECONDS = 0.1
JOIN_SECONDS = 10.0


@dataclass(slots=True)
class _Link:
    """Two sockets with everything between them. A deaf link takes bytes and gives none, for good."""

    client: socket.socket
    server: socket.socket
    is_deaf: bool = False
    threads: list[threading.Thread] = field(default_factory=list)

    def close(self) -> None:
        for side in (self.client, self.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class TcpProxy:
    """A context manager; ``port`` is where it listens.

    ``buffer_bytes`` makes the windows of both sides as small as the kernel allows, ``delay_seconds`` is waited before
    each chunk is passed on.
    """

    def __init__(self, port: int, *, buffer_bytes: int | None = None, delay_seconds: float = 0.0) -> None:
        self._target = (HOST, port)
        self._buffer_bytes = buffer_bytes
        self._delay_seconds = delay_seconds
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._is_silent = False
        self._chunks_left: int | None = None
        self._answer: bytes | None = None
        self._closing = threading.Event()
        self._listener = socket.socket()
        self._narrow(self._listener)
        self._listener.bind((HOST, 0))
        self._listener.listen()
        self._listener.settimeout(POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(JOIN_SECONDS)
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()
            for thread in link.threads:
                thread.join(JOIN_SECONDS)

    def fall_silent(self) -> None:
        """From now on every byte is taken, on old and new connections, and none is passed on: half-open."""
        with self._lock:
            self._is_silent = True
            for link in self._links:
                link.is_deaf = True

    def fall_silent_after(self, chunks: int) -> None:
        """Like fall_silent, once the server has said so much more. Connections that are open end now."""
        with self._lock:
            self._chunks_left = chunks
            links = list(self._links)
        for link in links:
            link.close()

    @property
    def is_silent(self) -> bool:
        return self._is_silent

    def recover(self) -> None:
        """Serve new connections as before. Connections that lost bytes end now: their servers get to know at last."""
        with self._lock:
            self._is_silent = False
            self._chunks_left = None
            self._answer = None
            deaf = [link for link in self._links if link.is_deaf]
        for link in deaf:
            link.close()

    def answer(self, content: bytes) -> None:
        """Let new connections get these bytes for their first ones, and end; those that are open end now."""
        with self._lock:
            self._answer = content
            links = list(self._links)
        for link in links:
            link.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                client.settimeout(None)
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._links = [link for link in self._links if any(thread.is_alive() for thread in link.threads)]
            answer, is_full = self._answer, len(self._links) >= CONNECTIONS_MAX
        if answer is not None or is_full:
            self._reply(client, answer or b"")
            return
        server = socket.socket()
        self._narrow(server)
        try:
            server.connect(self._target)
        except OSError:
            client.close()
            return
        link = _Link(client, server)
        for source, sink in ((client, server), (server, client)):
            link.threads.append(threading.Thread(target=self._pump, args=(link, source, sink), name="proxy pump"))
        with self._lock:
            link.is_deaf = self._is_silent
            self._links.append(link)
        for thread in link.threads:
            thread.start()

    def _reply(self, client: socket.socket, answer: bytes) -> None:
        """Wait for the other side's first word, as a server does, then say ours and hang up."""
        with client, suppress(OSError):
            client.settimeout(POLL_SECONDS * 10)
            client.recv(CHUNK_BYTES)
            client.sendall(answer)

    def _pump(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(self._buffer_bytes or CHUNK_BYTES):
                if self._delay_seconds:
                    time.sleep(self._delay_seconds)
                if source is link.server:
                    self._count_down()
                if not link.is_deaf:
                    sink.sendall(data)
        except OSError:
            pass
        # The end of a connection is lost in the same way as its bytes.
        if not link.is_deaf:
            link.close()

    def _count_down(self) -> None:
        with self._lock:
            if self._chunks_left is None:
                return
            self._chunks_left -= 1
            is_over = self._chunks_left < 0
        if is_over:
            self.fall_silent()

    def _narrow(self, one: socket.socket) -> None:
        if self._buffer_bytes is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer_bytes)
