"""Sessions that commit and roll back rows of both published tables beside each other, and remember which.

Rows of one key are committed in the order of their numbers whichever session writes them: a session holds the key's
advisory lock from before it draws a number until its transaction has ended. So the tables themselves say which
order is right. Whether a commit counted whose answer was lost, because the server died meanwhile, only the table
knows; what was answered, or rolled back on purpose, is remembered here, and the judge holds the tables to it.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

SIZES = (1, 1, 1, 2, 5, 40, 40, 300)
LARGE = 3_000
LARGE_SHARE = 0.01
ROLLBACK_SHARE = 0.2
SAVEPOINT_SHARE = 0.15
KEYS = 9
KEYS_IN_TRANSACTION = 3
STOP_SECONDS = 60.0

DISPATCHES = """
insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type,
                                      content_type, headers, payload, reason)
select message_id, 'delivery ' || message_id, 1, destination_id, 'event ' || n, 'test.event', 'text/plain', '{}',
       convert_to(rpad(message_id::text, %(payload)s, '.'), 'UTF8') || %(more)s::bytea, 'admitted'
from unnest(%(ids)s::uuid[], %(keys)s::text[]) with ordinality as rows (message_id, destination_id, n) order by n
"""
ATTEMPT = """
insert into outrider.delivery_attempt (delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq,
                                       worker_id, result, outcome, ambiguous, payload_sha256, started_at,
                                       duration_seconds)
values (%(id)s, 'event', 'test.event', %(key)s, 1, 1, 'test', 'succeeded', 'accepted', false, sha256('x'), now(), 0.1)
"""


def write_dispatches(connection: psycopg.Connection, seed: str, rows: int, *, more: bytes = b"") -> set[str]:
    """So many rows over some keys in one statement, with ``more`` in each payload; their message ids.

    They are the same for the same seed.
    """
    choice = random.Random(seed)
    ids = [str(uuid.UUID(int=choice.getrandbits(128), version=4)) for _ in range(rows)]
    owners = [f"destination {choice.randrange(KEYS_IN_TRANSACTION)}" for _ in ids]
    connection.execute(DISPATCHES, {"ids": ids, "keys": owners, "payload": 100, "more": more})
    return set(ids)


@dataclass(slots=True)
class Known:
    """Message ids by what became of their transaction for certain."""

    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)


class Session(threading.Thread):
    """One writer. It goes on after the database was away."""

    def __init__(self, dsn: str, seed: str, pause_seconds: float, *, attempts: bool) -> None:
        super().__init__(name=f"session {seed}")
        self.known = Known()
        self.error: Exception | None = None
        self._dsn = dsn
        self._random = random.Random(seed)
        self._pause_seconds = pause_seconds
        self._attempts = attempts
        self._stop_requested = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_requested.is_set():
                try:
                    with psycopg.connect(self._dsn, connect_timeout=5, autocommit=True) as connection:
                        self._write(connection)
                except psycopg.OperationalError:
                    self._stop_requested.wait(0.1)
        except Exception as error:
            self.error = error

    def request_stop(self) -> None:
        self._stop_requested.set()

    def _write(self, connection: psycopg.Connection) -> None:
        while not self._stop_requested.is_set():
            self._transaction(connection)
            self._stop_requested.wait(self._random.uniform(0, self._pause_seconds))

    def _transaction(self, connection: psycopg.Connection) -> None:
        choice = self._random
        rows = LARGE if choice.random() < LARGE_SHARE else choice.choice(SIZES)
        # Sorted, so that sessions never wait for each other in a circle.
        keys = sorted(
            f"destination {key}" for key in choice.sample(range(KEYS), choice.randint(1, KEYS_IN_TRANSACTION))
        )
        rolls_back = choice.random() < ROLLBACK_SHARE
        with connection.transaction(force_rollback=rolls_back):
            for key in keys:
                connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 11))", [key])
            written = self._insert(connection, keys, rows)
            if choice.random() < SAVEPOINT_SHARE:
                with connection.transaction(force_rollback=True):
                    lost = self._insert(connection, keys, choice.choice(SIZES))
                self.known.rolled_back |= lost
                written |= self._insert(connection, keys, 1)
        (self.known.rolled_back if rolls_back else self.known.committed).update(written)

    def _insert(self, connection: psycopg.Connection, keys: list[str], rows: int) -> set[str]:
        ids = [str(uuid.UUID(int=self._random.getrandbits(128), version=4)) for _ in range(rows)]
        owners = [self._random.choice(keys) for _ in ids]
        payload_bytes = self._random.choice((40, 100, 700))
        connection.execute(DISPATCHES, {"ids": ids, "keys": owners, "payload": payload_bytes, "more": b""})
        if self._attempts:
            connection.execute(ATTEMPT, {"id": ids[0], "key": owners[0]})
        return set(ids)


class OutboxLoad:
    """Several sessions on the same keys."""

    def __init__(
        self, dsn: str, seed: int, *, sessions: int = 3, pause_seconds: float = 0.5, attempts: bool = True
    ) -> None:
        self._sessions = [
            Session(dsn, f"{seed}-{number}", pause_seconds, attempts=attempts) for number in range(sessions)
        ]

    @property
    def committed(self) -> int:
        """Rows whose commit was answered so far."""
        return sum(len(session.known.committed) for session in self._sessions)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write while the block runs. Raises what ended a session, if not the server's absence."""
        for session in self._sessions:
            session.start()
        try:
            yield
        finally:
            for session in self._sessions:
                session.request_stop()
            for session in self._sessions:
                session.join(STOP_SECONDS)
            # Also where the block failed: a session that ended is the likely cause.
            for session in self._sessions:
                if session.error is not None:
                    raise session.error
                assert not session.is_alive(), f"{session.name} does not end"

    @property
    def known(self) -> Known:
        """Of all sessions; whole once they have ended."""
        return Known(
            committed=set[str]().union(*(session.known.committed for session in self._sessions)),
            rolled_back=set[str]().union(*(session.known.rolled_back for session in self._sessions)),
        )
