"""Many callers, one statement: calls that come close together go to the database as one batch.

A statement of 200 rows costs little more than one of a single row, and its commit is one flush. While a batch is on
its way, the next one gathers. Each caller gets the answer for its own row.

A database that is away, or refuses everybody, delays its callers and loses nothing: the batch is repeated, with backoff,
until it passes or the gathering is closed. The queue needs no bound of its own, because each caller waits with one request in it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

import psycopg
import structlog

from pipeline.delivery.metrics import BATCH_ROWS, BATCH_SECONDS

log = structlog.get_logger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")
Entry: TypeAlias = tuple[Request, "asyncio.Future[Result]"]

# Where batches are this small, waiting for company makes each row late and saves little.
LONELY_ROWS = 4
BACKOFF_SECONDS_FIRST = 0.1
BACKOFF_SECONDS_MAX = 5.0
# Errors that may be one row's own: the same statement would fail again for ever. They may as well be everybody's, where
# a constraint or a setting is at fault, so a row is given up only where another row passes, or where its values tell it.
ROW_ERRORS = (psycopg.DataError, psycopg.IntegrityError)
ROW_ERROR: TypeAlias = psycopg.DataError | psycopg.IntegrityError
# Refused before sending (NUL in a text); character not in repertoire; untranslatable character.
VALUE_SQLSTATES = (None, "22021", "22P05")


class ClosedError(Exception):
    """The program ends; the request was not carried out."""


class GroupCommit(Generic[Request, Result]):
    """Gathers requests for up to ``wait_seconds`` or ``rows_max`` and runs them as one call of ``run``.

    It waits only after a batch that had company. What comes while a batch is on its way is the next one anyhow.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]],
        *,
        rows_max: int,
        wait_seconds: float,
    ) -> None:
        """``run`` answers in the order of its requests, in one transaction that may be repeated."""
        self._name = name
        self._run = run
        self._rows_max = rows_max
        self._wait_seconds = wait_seconds
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Entry[Request, Result]] = deque()
        self._failures = 0
        self._rows_last = 0
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()

    def submit(self, request: Request) -> asyncio.Future[Result]:
        """The answer for this request; one of ROW_ERRORS if its own values cannot be stored."""
        answer: asyncio.Future[Result] = self._loop.create_future()
        self._queue.append((request, answer))
        self._arrived.set()
        if len(self._queue) >= self._rows_max:
            self._full.set()
        return answer

    async def serve(self) -> None:
        """Run batches until cancelled; then whoever still waits gets ClosedError."""
        try:
            while True:
                await self._arrived.wait()
                await self._wait_for_company()
                batch = [self._queue.popleft() for _ in range(min(self._rows_max, len(self._queue)))]
                self._rows_last = len(batch)
                if not self._queue:
                    self._arrived.clear()
                if len(self._queue) < self._rows_max:
                    self._full.clear()
                try:
                    await self._answer(batch)
                except BaseException:
                    _close(batch)
                    raise
        finally:
            _close(self._queue)

    async def _wait_for_company(self) -> None:
        if self._wait_seconds > 0 and self._rows_last > LONELY_ROWS and not self._full.is_set():
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass

    async def _answer(self, batch: list[Entry[Request, Result]]) -> None:
        try:
            results: Sequence[Result | ROW_ERROR] = await self._repeat([request for request, _ in batch])
        except ROW_ERRORS as error:
            # One row spoils the statement for all; alone, only it fails.
            results = [error] if len(batch) == 1 else [await self._alone(request) for request, _ in batch]
            if all(isinstance(result, ROW_ERRORS) and not _is_of_values(result) for result in results):
                await self._put_back(batch, error)
                return
        self._failures = 0
        for (_, answer), result in zip(batch, results, strict=True):
            _resolve(answer, result)

    async def _alone(self, request: Request) -> Result | ROW_ERROR:
        try:
            return (await self._repeat([request]))[0]
        except ROW_ERRORS as error:
            return error

    async def _put_back(self, batch: list[Entry[Request, Result]], error: ROW_ERROR) -> None:
        """Nothing has passed, so the fault may be the statement's: try again, with whoever has come until then."""
        self._queue.extendleft(reversed([entry for entry in batch if not entry[1].done()]))
        if self._queue:
            self._arrived.set()
        await self._pause(error, len(batch))

    async def _repeat(self, requests: list[Request]) -> Sequence[Result]:
        while True:
            try:
                with BATCH_SECONDS.labels(self._name).time():
                    results = await self._run(requests)
                BATCH_ROWS.labels(self._name).observe(len(requests))
                return results
            except ROW_ERRORS:
                raise
            except psycopg.Error as error:
                await self._pause(error, len(requests))

    async def _pause(self, error: psycopg.Error, rows: int) -> None:
        """Longer with each failure in a row."""
        backoff_seconds = min(BACKOFF_SECONDS_FIRST * 2.0 ** min(self._failures, 16), BACKOFF_SECONDS_MAX)
        self._failures += 1
        log.warning(
            "database refused, trying again",
            work=self._name, rows=rows, error=" ".join(str(error).split()), retry_seconds=round(backoff_seconds, 1),
        )  # fmt: skip
        await asyncio.sleep(backoff_seconds * (0.5 + random.random() / 2))  # noqa: S311 - jitter


def _is_of_values(error: BaseException) -> bool:
    """Whether the row's own values cannot be stored, beyond doubt."""
    return isinstance(error, psycopg.DataError) and error.sqlstate in VALUE_SQLSTATES


def _resolve(answer: asyncio.Future[Result], result: Result | Exception) -> None:
    if answer.done():  # its caller was cancelled
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _close(entries: Iterable[Entry[Request, Result]]) -> None:
    for _, answer in entries:
        if not answer.done():
            answer.set_exception(ClosedError())
