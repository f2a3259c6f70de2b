"""A request to stop that wakes whatever waits: a sleep, or a poll over sockets."""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress


class StopSignal:
    """Set once, from a signal handler or another thread; never unset."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._set_at: float | None = None

    def set(self) -> None:
        if self._set_at is None:
            self._set_at = time.monotonic()
        with suppress(BlockingIOError):  # unread bytes wake the waiter as well
            self._sender.send(b"\0")

    def is_set(self) -> bool:
        return self._set_at is not None

    def seconds_since(self) -> float:
        """Seconds since it was set; 0 before."""
        return 0.0 if self._set_at is None else time.monotonic() - self._set_at

    def close(self) -> None:
        """Free its sockets, once nothing waits for it any more."""
        self._receiver.close()
        self._sender.close()

    def fileno(self) -> int:
        """Readable once the signal is set."""
        return self._receiver.fileno()

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until the signal is set; whether it is set."""
        if self._set_at is None:
            poller = select.poll()
            poller.register(self._receiver, select.POLLIN)
            poller.poll(max(0.0, seconds) * 1000)
        return self._set_at is not None
