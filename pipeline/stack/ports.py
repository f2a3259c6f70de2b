"""Free TCP ports on the loopback address."""

from __future__ import annotations

import socket
from contextlib import ExitStack

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


def preferred_or_free(preferred: list[int]) -> list[int]:
    """Keep the ports of an earlier start while all are free, else choose as many new ones."""
    if len(set(preferred)) == len(preferred) and all(is_free(port) for port in preferred):
        return preferred
    return free_ports(len(preferred))
