"""A thread that ends Kafka transactions, one after the other, while its owner fills the next."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from connectors.errors import ConnectorError, KafkaUnavailableError
from connectors.kafka.transactions import CALL_SECONDS, TransactionalProducer

_LOOK_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 4 * CALL_SECONDS


class _ClosedError(Exception):
    """The owner does not wait for the result any more."""


class Committer:
    """Commits in the order in which transactions were handed over, and none after one that failed.

    The methods are the owner's, who is one thread. ``fileno`` is readable after each flush, commit and failure.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._changed = threading.Condition()
        # All below is guarded by the condition.
        self._jobs: deque[TransactionalProducer] = deque()
        self._unflushed = 0
        self._unsettled = 0
        self._committed = 0
        self._failure: Exception | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def hand_over(self, producer: TransactionalProducer) -> None:
        """End the producer's open transaction as soon as those before it are."""
        with self._changed:
            self._jobs.append(producer)
            self._unflushed += 1
            self._unsettled += 1
            self._changed.notify_all()

    @property
    def committed(self) -> int:
        """How many transactions were committed. Raises what made one fail."""
        if self._failure is not None:
            raise self._failure
        return self._committed

    @property
    def is_settled(self) -> bool:
        """Whether every transaction that was handed over is committed. Raises what made one fail."""
        if self._failure is not None:
            raise self._failure
        return not self._unsettled

    @property
    def is_flushed(self) -> bool:
        """Whether every record that was handed over lies in its topic. Raises what made a transaction fail."""
        if self._failure is not None:
            raise self._failure
        return not self._unflushed

    def wait_flushed(self, while_waiting: Callable[[], None]) -> None:
        """Until every record that was handed over lies in its topic: what is put after it comes later in the log."""
        if self._unflushed or self._failure is not None:
            self._wait(lambda: not self._unflushed, while_waiting)

    def wait_settled(self, while_waiting: Callable[[], None]) -> None:
        self._wait(lambda: not self._unsettled, while_waiting)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def acknowledge(self) -> None:
        """Make ``fileno`` unreadable until something happens again."""
        with suppress(BlockingIOError):
            self._receiver.recv(4096)

    def close(self) -> None:
        """Nothing is committed from here on, but a commit under way may still succeed."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._receiver.close()
            self._sender.close()

    def _wait(self, done: Callable[[], bool], while_waiting: Callable[[], None]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._failure is not None or done(), _LOOK_SECONDS)
                if self._failure is not None:
                    raise self._failure
                if done():
                    return
            while_waiting()

    # --- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (producer := self._next()) is not None:
                producer.flush(self._check_open)
                with self._changed:
                    self._unflushed -= 1
                    self._changed.notify_all()
                self._wake()
                producer.commit(self._check_open)
                self._settle(None)
        except _ClosedError:
            pass
        except ConnectorError as error:
            self._settle(error)
        except Exception as error:
            self._settle(KafkaUnavailableError(f"Kafka did not commit: {error!r}"))

    def _next(self) -> TransactionalProducer | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._is_closing)
            return None if self._is_closing else self._jobs.popleft()

    def _settle(self, failure: Exception | None) -> None:
        """A failure ends the thread, so that nothing later than the failed transaction is ever committed."""
        with self._changed:
            self._failure = failure
            if failure is None:
                self._unsettled -= 1
                self._committed += 1
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # unread bytes wake the owner as well
            self._sender.send(b"\0")

    def _check_open(self) -> None:
        if self._is_closing:
            raise _ClosedError
