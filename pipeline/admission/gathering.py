"""Group commit: admissions that come at the same time go to the ledger in one statement and one commit.

While a commit is on its way the next group gathers, so nobody waits for company, and the groups grow with the load. One
statement of a hundred events costs little more than ten of one, and its commit is one flush.

An event that the ledger refuses fails alone, inside the statement. When the statement itself fails (another
transaction holds one of the events), each event of the group is tried by itself. A database that is away fails
its group at once: the caller is told so, and repeats.

The queue has no bound of its own, because each caller waits with one request in it, and those are counted at the door.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from pipeline.admission.metrics import COMMIT_EVENTS, COMMIT_SECONDS
from pipeline.admission.problems import unavailable
from pipeline.ledger.admission import Admitted, EventToAdmit, Refused, admit_many
from pipeline.ledger.pool import Connection, Pool

COMMIT_SECONDS_MAX = 8.0
"""Longest wait for a commit. It may still come; the caller repeats and learns so."""
OVERDUE_SECONDS = 0.5
"""How often it is looked who waits too long: one look for all costs less than a timer for each."""
GROUP_EVENTS_MAX = 200
GROUP_BYTES_MAX = 8 * 1024 * 1024
CONNECT_SECONDS = 3.0
PATIENCE_SECONDS = 0.025
"""How long a commit may hold up the next one. In that time a larger group gathers, which is less work for each event; one
that takes longer waits for something, and must not make the others wait too."""
IDLE_SECONDS = 1.0
"""A connection that had nothing to do goes back to the pool, which checks it before it is used again."""

_log = structlog.get_logger(__name__)
_Answer = Admitted | Refused


@dataclass(frozen=True, slots=True)
class _Waiting:
    event: EventToAdmit
    answer: asyncio.Future[_Answer]
    until: float


class Gathering:
    def __init__(self, pool: Pool, *, committers: int) -> None:
        """``committers``: commits, and connections of the pool, at the same time."""
        self._pool = pool
        self._committers = committers
        self._queue: deque[_Waiting] = deque()
        self._unanswered: deque[_Waiting] = deque()  # in the order of their deadlines, some of them answered by now
        self._arrived = asyncio.Event()
        self._committing = 0
        self._ended = asyncio.Event()

    def admit(self, event: EventToAdmit) -> asyncio.Future[_Answer]:
        """The ledger's answer, after the commit. It fails with a Refusal of 503 where there was no commit."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        waiting = _Waiting(event, answer, loop.time() + COMMIT_SECONDS_MAX)
        self._queue.append(waiting)
        self._unanswered.append(waiting)
        self._arrived.set()
        return answer

    async def run(self) -> None:
        """Commit until cancelled; then whoever still waits is told to repeat."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fail_overdue())
                for _ in range(self._committers):
                    tasks.create_task(self._commit_groups())
        finally:
            _fail(list(self._queue), "the server is going down")
            self._queue.clear()

    async def _commit_groups(self) -> None:
        while True:
            await self._arrived.wait()
            try:
                async with self._pool.connection(timeout=CONNECT_SECONDS) as connection:
                    while await self._arrives():
                        await self._wait_for_company()
                        group = self._next_group()
                        self._committing += 1
                        try:
                            await self._commit(connection, group)
                        finally:
                            self._committing -= 1
                            self._ended.set()
                            _fail(group, "the commit was not confirmed")
            except PoolTimeout:
                _fail(list(self._queue), "the database is away")
                self._queue.clear()
                self._arrived.clear()
            except psycopg.Error as error:
                _log.warning("a connection was lost", error=" ".join(str(error).split()))

    async def _fail_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(OVERDUE_SECONDS)
            while self._unanswered and (self._unanswered[0].answer.done() or self._unanswered[0].until < loop.time()):
                _fail([self._unanswered.popleft()], f"no commit within {COMMIT_SECONDS_MAX:g} s")

    async def _arrives(self) -> bool:
        if self._arrived.is_set():
            return True
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_for_company(self) -> None:
        """While another commit is on its way, but not longer than PATIENCE_SECONDS, nor with a full group."""
        if not self._committing or len(self._queue) >= GROUP_EVENTS_MAX:
            return
        self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._ended.wait()

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        group_bytes = 0
        while self._queue and len(group) < GROUP_EVENTS_MAX and group_bytes < GROUP_BYTES_MAX:
            waiting = self._queue.popleft()
            if not waiting.answer.done():  # its caller gave up
                group.append(waiting)
                group_bytes += len(waiting.event.payload)
        if not self._queue:
            self._arrived.clear()
        return group

    async def _commit(self, connection: Connection, group: list[_Waiting]) -> None:
        if not group:
            return
        try:
            with COMMIT_SECONDS.time():
                answers = await admit_many(connection, [waiting.event for waiting in group])
        except Exception as error:  # whatever is wrong with one event must not fail the others
            if isinstance(error, psycopg.Error) and connection.closed:
                raise
            if len(group) == 1:
                _log.warning("an event was not admitted", error=" ".join(str(error).split()))
                _fail(group, _reason(error))
                return
            _log.info("a group failed, each event is tried by itself", events=len(group))
            for waiting in group:
                if not waiting.answer.done():
                    await self._commit(connection, [waiting])
            return
        COMMIT_EVENTS.observe(len(group))
        for waiting, answer in zip(group, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)


def _reason(error: Exception) -> str:
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "another transaction holds this event"
    return "the database did not commit it"


def _fail(group: list[_Waiting], detail: str) -> None:
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(unavailable(detail))
