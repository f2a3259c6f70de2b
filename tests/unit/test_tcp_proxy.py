"""The proxy that stands for a failing network: it must fail as it says, and pass everything else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.tcp_proxy import TcpProxy

SECONDS = 10.0


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that gives back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(one,), daemon=True).start()

    def echo(one: socket.socket) -> None:
        with one:
            while data := one.recv(4096):
                one.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS)


def said(one: socket.socket, content: bytes) -> bytes:
    """What comes back for it, as much as was sent."""
    one.sendall(content)
    back = b""
    while len(back) < len(content) and (data := one.recv(4096)):
        back += data
    return back


def test_bytes_pass_whole_also_through_tiny_windows(echo_port: int) -> None:
    with TcpProxy(echo_port, buffer_bytes=512, delay_seconds=0.001) as proxy, connected(proxy) as one:
        assert said(one, b"x" * 5_000) == b"x" * 5_000


def test_a_silent_connection_stays_open_and_gives_nothing_until_it_ends(echo_port: int) -> None:
    with TcpProxy(echo_port) as proxy, connected(proxy) as old:
        assert said(old, b"before") == b"before"
        proxy.fall_silent()
        old.sendall(b"lost")
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            old.recv(1)
        proxy.recover()
        old.settimeout(SECONDS)
        assert old.recv(1) == b""
        with connected(proxy) as new:
            assert said(new, b"after") == b"after"


def test_it_answers_for_the_server(echo_port: int) -> None:
    with TcpProxy(echo_port) as proxy:
        proxy.answer(b"closed today")
        with connected(proxy) as one:
            one.sendall(b"hello")
            assert one.recv(100) == b"closed today"
        proxy.recover()
        with connected(proxy) as one:
            assert said(one, b"hello") == b"hello"
