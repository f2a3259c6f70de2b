"""Free TCP ports on the loopback address.

They are taken from below the range that the kernel gives to outgoing connections. From within it, a
client that keeps calling a server which is down is some day given that server's own port, connects
to itself, and the server cannot come back.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from pipeline.stack.errors import StackError

HOST = "127.0.0.1"
LOWEST_PORT = 10_000
# The kernel's default, for where /proc does not tell.
OUTGOING_FROM = 32_768
TRIES = 1_000


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody listens on now.

    Another process may take one before it is used: a server then fails at start and says so.
    Raises StackError when there are not enough.
    """
    candidates = range(LOWEST_PORT, max(outgoing_from(), LOWEST_PORT + TRIES))
    chosen: list[int] = []
    for port in random.SystemRandom().sample(candidates, TRIES):
        if len(chosen) == count:
            return chosen
        if is_free(port):
            chosen.append(port)
    raise StackError(f"fewer than {count} ports from {candidates.start} to {candidates.stop} are free")


def is_free(port: int) -> bool:
    """Whether a server could bind `port` now (a port in TIME_WAIT counts as free)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def outgoing_from() -> int:
    """The lowest port that the kernel gives to an outgoing connection."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return OUTGOING_FROM


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
