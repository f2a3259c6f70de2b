"""Free TCP ports on the loopback address."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody listens on now.

    All are held open until the last is chosen, so that they differ. Another process may still
    take one before it is used: a server that finds its port taken fails at start and says so.
    """
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def is_free(port: int) -> bool:
    """Whether a server could bind `port` now (a port in TIME_WAIT counts as free)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def read_ports(file: Path, count: int) -> list[int] | None:
    """Ports that an earlier start wrote to `file`; None when there are not `count` of them."""
    try:
        ports = [int(word) for word in file.read_text(encoding="ascii").split()]
    except (FileNotFoundError, ValueError):
        return None
    return ports if len(ports) == count else None


def choose_ports(file: Path, count: int) -> list[int]:
    """The ports of the last start while they are free, else new ones; written to `file`.

    Clients that outlive a restart of their server keep its address that way.
    """
    earlier = read_ports(file, count)
    if earlier is not None and all(is_free(port) for port in earlier):
        return earlier
    ports = free_ports(count)
    file.write_text(" ".join(map(str, ports)) + "\n", encoding="ascii")
    return ports
