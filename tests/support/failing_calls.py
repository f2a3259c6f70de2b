"""Makes one call of a connector to PostgreSQL or Kafka fail, the Nth of all, with real servers behind.

The connector's own modules get clients that count their calls; everybody else's stay as they are. How a call fails is
a :class:`Mode`. Where the real thing can be had it is: a socket is shut down, a session terminated by the server. The
rest are the exceptions that the libraries raise.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from enum import Enum
from os import dup
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import psycopg
from confluent_kafka import KafkaError, KafkaException, Message

OURS = "connectors."

CONNECTION_CALLS = frozenset({"execute", "commit", "rollback", "cursor"})
PGCONN_CALLS = frozenset(
    {
        "exec_",
        "exec_params",
        "send_query",
        "send_query_params",
        "get_result",
        "consume_input",
        "get_copy_data",
        "put_copy_data",
        "put_copy_end",
        "flush",
    }
)
PRODUCER_CALLS = frozenset(
    {"init_transactions", "begin_transaction", "produce", "flush", "commit_transaction", "abort_transaction"}
)
CONSUMER_CALLS = frozenset({"assign", "poll", "consume", "get_watermark_offsets", "list_topics"})
ADMIN_CALLS = frozenset({"describe_configs", "list_offsets", "describe_topics", "list_topics"})


class Mode(Enum):
    """What becomes of the chosen call."""

    BROKEN = "broken"
    """PostgreSQL: the connection breaks before it. Kafka: it cannot be sent, trying again may help."""
    UNANSWERED = "unanswered"
    """It is done, but its answer is lost: the connection breaks, or the time is over."""
    ENDED = "ended"
    """PostgreSQL: the server ends the session. Kafka: the client has failed for good."""
    ABORTED = "aborted"
    """PostgreSQL: the server refuses, as one that shuts down does. Kafka: the transaction must be aborted."""


ERRORS = {
    Mode.BROKEN: KafkaError(KafkaError._TRANSPORT, "the connection broke (on purpose)", retriable=True),
    Mode.UNANSWERED: KafkaError(KafkaError._TIMED_OUT, "no answer in time (on purpose)", retriable=True),
    Mode.ENDED: KafkaError(KafkaError._FATAL, "the client failed for good (on purpose)", fatal=True),
    Mode.ABORTED: KafkaError(KafkaError.UNKNOWN_PRODUCER_ID, "must be aborted (on purpose)", txn_requires_abort=True),
}


class FailingCalls:
    """Counts calls over all threads; the one with number ``fail_at`` (from 1; 0: none) fails in ``mode``."""

    def __init__(self, fail_at: int, mode: Mode, admin_dsn: str) -> None:
        self.count = 0
        self.failed: str | None = None
        """The call that failed, by name."""
        self._fail_at = fail_at
        self._mode = mode
        self._admin_dsn = admin_dsn
        self._lock = threading.Lock()

    def fails(self, name: str) -> bool:
        """Count a call; whether it is the one."""
        with self._lock:
            self.count += 1
            if self.count != self._fail_at:
                return False
            self.failed = name
            return True

    # --- PostgreSQL ---------------------------------------------------------------------

    def connect(self, connect: Callable[[], psycopg.Connection]) -> FailingConnection:
        """In the place of a connection class's ``connect``."""
        fails = self.fails("psycopg.connect")
        if fails and self._mode in (Mode.BROKEN, Mode.ABORTED):
            raise psycopg.OperationalError("connection refused (on purpose)")
        connection = connect()
        if fails and self._mode is Mode.UNANSWERED:
            connection.close()
            raise psycopg.OperationalError("connection timeout expired (on purpose)")
        if fails:
            self._end(connection.pgconn.backend_pid)
        return FailingConnection(connection, self)

    def on_connection(self, name: str, connection: psycopg.Connection, call: Callable[[], Any]) -> Any:
        if not self.fails(f"connection.{name}"):
            return call()
        if self._mode is Mode.ABORTED:
            raise psycopg.errors.AdminShutdown("the server shuts down (on purpose)")
        if self._mode is Mode.UNANSWERED:
            call()
            _break(connection.pgconn.socket)
            raise psycopg.OperationalError("server closed the connection unexpectedly (on purpose)")
        self._before(connection.pgconn)
        return call()

    def on_pgconn(self, name: str, pgconn: Any, call: Callable[[], Any]) -> Any:
        if not self.fails(f"pgconn.{name}"):
            return call()
        if self._mode is Mode.UNANSWERED:
            # What the library has taken in already stays valid; the next use of the socket fails.
            result = call()
            _break(pgconn.socket)
            return result
        self._before(pgconn)
        return call()

    def _before(self, pgconn: Any) -> None:
        if self._mode is Mode.BROKEN:
            _break(pgconn.socket)
        else:
            self._end(pgconn.backend_pid)

    def _end(self, pid: int) -> None:
        with psycopg.connect(self._admin_dsn, autocommit=True) as admin:
            # With a time to wait for, so that the session is gone when the call is made.
            admin.execute("select pg_terminate_backend(%s, 2000)", [pid])

    # --- Kafka --------------------------------------------------------------------------

    def on_producer(self, name: str, producer: confluent_kafka.Producer, call: Callable[[], Any]) -> Any:
        if not self.fails(f"producer.{name}"):
            return call()
        if name == "flush" and self._mode in (Mode.BROKEN, Mode.UNANSWERED):
            return 1  # it never raises for that: something is left to send
        if name == "produce" and self._mode is Mode.BROKEN:
            raise BufferError("the queue is full (on purpose)")
        if self._mode is Mode.UNANSWERED:
            result = call()
            if name == "produce":
                # It only puts the record into a queue; what can get lost is the record, and its transaction then fails.
                producer.purge()
                return result
        raise KafkaException(ERRORS[self._mode])

    def on_consumer(self, name: str, call: Callable[[], Any]) -> Any:
        if not self.fails(f"consumer.{name}"):
            return call()
        if name in ("poll", "consume"):
            message = Message(topic="on-purpose", partition=0, error=ERRORS[self._mode])
            return message if name == "poll" else [message]
        raise KafkaException(ERRORS[self._mode])

    def on_admin(self, name: str, subjects: Any, call: Callable[[], Any]) -> Any:
        if not self.fails(f"admin.{name}"):
            return call()
        if name == "list_topics":
            raise KafkaException(ERRORS[self._mode])
        futures: dict[Any, Future[Any]] = {}
        for subject in subjects:
            futures[subject] = Future()
            futures[subject].set_exception(KafkaException(ERRORS[self._mode]))
        return futures

    # --- in place -----------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the connector's modules use failing clients while the block runs."""
        ways: Mapping[object, Callable[..., Any]] = {
            confluent_kafka.Producer: lambda *a, **k: self._producer(confluent_kafka.Producer(*a, **k)),
            confluent_kafka.Consumer: lambda *a, **k: _Counted(
                confluent_kafka.Consumer(*a, **k), CONSUMER_CALLS, lambda name, _, call: self.on_consumer(name, call)
            ),
            confluent_kafka.admin.AdminClient: lambda *a, **k: _Counted(
                confluent_kafka.admin.AdminClient(*a, **k), ADMIN_CALLS, self.on_admin
            ),
        }
        original_connect = vars(psycopg.Connection)["connect"]

        def connect(cls: type[psycopg.Connection], *arguments: Any, **options: Any) -> Any:
            def really() -> psycopg.Connection:
                return original_connect.__func__(cls, *arguments, **options)

            return self.connect(really) if _called_by_connector() else really()

        # psycopg.connect was bound when it was imported, so who calls that is not concerned.
        replaced: list[tuple[Any, str, object]] = [(psycopg.Connection, "connect", original_connect)]
        psycopg.Connection.connect = classmethod(connect)
        for module in [module for name, module in sys.modules.items() if name.startswith(OURS)]:
            for name, original in list(vars(module).items()):
                if isinstance(original, type) and original in ways:
                    replaced.append((module, name, original))
                    setattr(module, name, ways[original])
        try:
            yield
        finally:
            for place, name, original in replaced:
                setattr(place, name, original)

    def _producer(self, real: confluent_kafka.Producer) -> _Counted:
        return _Counted(real, PRODUCER_CALLS, lambda name, _, call: self.on_producer(name, real, call))


class _Counted:
    """A client whose calls of some names go through ``way(name, first argument, call)``."""

    def __init__(self, real: Any, names: frozenset[str], way: Callable[[str, Any, Callable[[], Any]], Any]) -> None:
        self._real = real
        self._names = names
        self._way = way

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if name not in self._names:
            return attribute
        way = self._way

        def counted(*arguments: Any, **options: Any) -> Any:
            first = arguments[0] if arguments else None
            return way(name, first, lambda: attribute(*arguments, **options))

        return counted


class FailingConnection(_Counted):
    """In the place of a psycopg connection; its ``pgconn`` counts too."""

    def __init__(self, real: psycopg.Connection, calls: FailingCalls) -> None:
        super().__init__(real, CONNECTION_CALLS, lambda name, _, call: calls.on_connection(name, real, call))
        self.pgconn = _FailingPgconn(real.pgconn, calls)

    def __enter__(self) -> FailingConnection:
        self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._real.__exit__(*error)


class _FailingPgconn(_Counted):
    def __init__(self, real: Any, calls: FailingCalls) -> None:
        super().__init__(real, PGCONN_CALLS, lambda name, _, call: calls.on_pgconn(name, real, call))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._real, name, value)


def _called_by_connector() -> bool:
    # Two frames up: the caller of the one that asks.
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(OURS)


def _break(descriptor: int) -> None:
    """The connection ends at once for both sides, as a failing network or host ends it."""
    with suppress(OSError), socket.socket(fileno=dup(descriptor)) as twin:
        twin.shutdown(socket.SHUT_RDWR)
