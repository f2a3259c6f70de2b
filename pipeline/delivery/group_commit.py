"""Many callers, one statement: calls that come close together go to the database as one batch.

A statement of 200 rows costs little more than one of a single row, and its commit is one flush. While a batch is on
its way, the next one gathers. Each caller gets the answer for its own row.

A database that is away delays its callers and loses nothing: the batch is repeated, with backoff, until it passes or
the gathering is closed. The queue needs no bound of its own, because each caller waits with one request in it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import psycopg
import structlog

from pipeline.delivery.metrics import BATCH_ROWS, BATCH_SECONDS

log = structlog.get_logger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")

BACKOFF_SECONDS_FIRST = 0.1
BACKOFF_SECONDS_MAX = 5.0
# Errors of a row's own values: the same statement would fail again for ever.
ROW_ERRORS = (psycopg.DataError, psycopg.IntegrityError)


class ClosedError(Exception):
    """The program ends; the request was not carried out."""


class GroupCommit(Generic[Request, Result]):
    """Gathers requests for up to ``wait_seconds`` or ``rows_max`` and runs them as one call of ``run``."""

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
        self._queue: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()

    def submit(self, request: Request) -> asyncio.Future[Result]:
        """The answer for this request; one of ROW_ERRORS if its own values cannot be stored."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
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
                if not self._queue:
                    self._arrived.clear()
                if len(self._queue) < self._rows_max:
                    self._full.clear()
                try:
                    await self._answer(batch)
                finally:
                    _close(batch)
        finally:
            _close(self._queue)

    async def _wait_for_company(self) -> None:
        if self._wait_seconds > 0 and not self._full.is_set():
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass

    async def _answer(self, batch: list[tuple[Request, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._repeat([request for request, _ in batch])
        except ROW_ERRORS as error:
            if len(batch) == 1:
                _resolve(batch[0][1], error)
                return
            # One row spoils the statement for all; alone, only it fails.
            for single in batch:
                await self._answer([single])
            return
        for (_, answer), result in zip(batch, results, strict=True):
            _resolve(answer, result)

    async def _repeat(self, requests: list[Request]) -> Sequence[Result]:
        backoff_seconds = BACKOFF_SECONDS_FIRST
        while True:
            try:
                with BATCH_SECONDS.labels(self._name).time():
                    results = await self._run(requests)
                BATCH_ROWS.labels(self._name).observe(len(requests))
                return results
            except ROW_ERRORS:
                raise
            except psycopg.Error as error:
                reason = " ".join(str(error).split())
                log.warning(
                    "database refused, trying again",
                    work=self._name, rows=len(requests), error=reason, retry_seconds=round(backoff_seconds, 1),
                )  # fmt: skip
            await asyncio.sleep(backoff_seconds * (0.5 + random.random() / 2))  # noqa: S311 - jitter
            backoff_seconds = min(backoff_seconds * 2, BACKOFF_SECONDS_MAX)


def _resolve(answer: asyncio.Future[Result], result: Result | Exception) -> None:
    if answer.done():  # its caller was cancelled
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _close(entries: Sequence[tuple[Request, asyncio.Future[Result]]]) -> None:
    for _, answer in entries:
        if not answer.done():
            answer.set_exception(ClosedError())
