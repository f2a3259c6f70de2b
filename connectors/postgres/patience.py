"""Connections that give up a server which takes commands but answers none.

The kernel notices a host that is gone, but not one whose PostgreSQL hangs, nor a proxy that keeps a connection open with
nobody behind it. Without a bound, a connector that meets one of them while it starts would wait for ever.
"""

from __future__ import annotations

import select
import time
from typing import Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow

ANSWER_SECONDS_MAX: Final = 60.0
"""Without a byte from the server, while it is asked for something."""
LOOK_SECONDS: Final = 0.2

RV = TypeVar("RV")


class PatientConnection(psycopg.Connection[TupleRow]):
    """Every command raises OperationalError after a long silence. What is read by ``pgconn`` is not: see next_result."""

    def wait(self, gen: PQGen[RV], interval: float = LOOK_SECONDS, timeout: float | None = None) -> RV:
        return super().wait(_bounded(gen), min(interval, LOOK_SECONDS))


def next_result(pgconn: PGconn) -> PGresult | None:
    """Like ``pgconn.get_result()``, which would wait for ever, with all threads of the interpreter waiting too.

    Raises OperationalError after a long silence.
    """
    while pgconn.is_busy():
        poller = select.poll()
        poller.register(pgconn.socket, select.POLLIN)
        if not poller.poll(ANSWER_SECONDS_MAX * 1000):
            raise psycopg.OperationalError(f"the server has not answered for {ANSWER_SECONDS_MAX:.0f} s")
        pgconn.consume_input()
    return pgconn.get_result()


def _bounded(gen: PQGen[RV]) -> PQGen[RV]:
    """The same generator, ended by an error when nothing has become ready for too long."""
    heard_at = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard_at = now
            elif now - heard_at > ANSWER_SECONDS_MAX:
                raise psycopg.OperationalError(f"the server has not answered for {now - heard_at:.0f} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        result: RV = done.value
        return result
