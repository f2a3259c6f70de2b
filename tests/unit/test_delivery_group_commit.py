"""Group commit: batches, answers in place, and nothing lost when the database refuses."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest

from pipeline.delivery.group_commit import ClosedError, GroupCommit


class Database:
    """Stands for a statement: doubles numbers, refuses odd things, and remembers its batches."""

    def __init__(self, *, away_for: int = 0, refuses_all_for: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.away_for = away_for
        self.refuses_all_for = refuses_all_for
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, requests):
        await self.gate.wait()
        self.batches.append(list(requests))
        if self.away_for > 0:
            self.away_for -= 1
            raise psycopg.OperationalError("the server closed the connection")
        if self.refuses_all_for > 0:
            self.refuses_all_for -= 1
            raise psycopg.errors.CheckViolation("a constraint that no row passes")
        if any(request < 0 for request in requests):
            raise psycopg.DataError("a value cannot be stored")
        if any(request > 1_000 for request in requests):
            raise psycopg.errors.NumericValueOutOfRange("a value that the statement cannot take")
        return [request * 2 for request in requests]


@asynccontextmanager
async def serving(database, *, rows_max=10, wait_seconds=0.001):
    group = GroupCommit("double", database.run, rows_max=rows_max, wait_seconds=wait_seconds)
    task = asyncio.create_task(group.serve())
    try:
        yield group
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_each_caller_gets_its_own_answer():
    async with serving(Database()) as group:
        answers = await asyncio.gather(*(group.submit(n) for n in range(95)))
    assert answers == [n * 2 for n in range(95)]


async def test_what_comes_together_goes_together_and_no_batch_is_too_large():
    database = Database()
    async with serving(database, rows_max=10) as group:
        await asyncio.gather(*(group.submit(n) for n in range(25)))
    assert [len(batch) for batch in database.batches] == [10, 10, 5]
    assert [n for batch in database.batches for n in batch] == list(range(25))


async def test_a_full_batch_does_not_wait_for_company():
    async with serving(Database(), rows_max=5, wait_seconds=3600.0) as group:
        async with asyncio.timeout(5):
            assert await asyncio.gather(*(group.submit(n) for n in range(10))) == [n * 2 for n in range(10)]


async def test_only_after_a_batch_with_company_a_request_waits_for_some():
    async with serving(Database(), rows_max=5, wait_seconds=3600.0) as group:
        async with asyncio.timeout(5):
            assert [await group.submit(n) for n in range(3)] == [0, 2, 4]
            await asyncio.gather(*(group.submit(n) for n in range(5)))
        alone = group.submit(1)
        await asyncio.wait({alone}, timeout=0.2)
        assert not alone.done()
        async with asyncio.timeout(5):
            assert await asyncio.gather(alone, *(group.submit(n) for n in range(4))) == [2, 0, 2, 4, 6]


async def test_while_one_batch_is_on_its_way_the_next_one_gathers():
    database = Database()
    database.gate.clear()
    async with serving(database, rows_max=100, wait_seconds=0.0) as group:
        first = group.submit(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [group.submit(n) for n in range(2, 30)]
        database.gate.set()
        await asyncio.gather(first, *rest)
    assert database.batches == [[1], list(range(2, 30))]


async def test_a_database_that_is_away_delays_and_loses_nothing():
    database = Database(away_for=2)
    async with serving(database) as group, asyncio.timeout(30):
        assert await asyncio.gather(*(group.submit(n) for n in range(3))) == [0, 2, 4]
    assert database.batches == [[0, 1, 2]] * 3


async def test_one_bad_row_fails_alone():
    async with serving(Database()) as group:
        answers = await asyncio.gather(*(group.submit(n) for n in (1, -2, 3)), return_exceptions=True)
    assert answers[0] == 2
    assert isinstance(answers[1], psycopg.DataError)
    assert answers[2] == 6


async def test_a_fault_of_the_statement_is_nobodys_own():
    # Of three: the batch, then each alone. Nothing has passed, so nobody is given up.
    database = Database(refuses_all_for=4)
    async with serving(database) as group, asyncio.timeout(30):
        assert await asyncio.gather(*(group.submit(n) for n in range(3))) == [0, 2, 4]
    assert database.batches == [[0, 1, 2], [0], [1], [2], [0, 1, 2]]


async def test_a_row_that_may_be_at_fault_waits_for_one_that_passes():
    async with serving(Database()) as group, asyncio.timeout(30):
        suspect = group.submit(1_001)
        done, _ = await asyncio.wait({suspect}, timeout=0.2)
        assert not done
        assert await group.submit(1) == 2
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            await suspect


async def test_a_caller_that_went_away_does_not_disturb_the_others():
    database = Database()
    database.gate.clear()
    async with serving(database) as group:
        answers = [group.submit(n) for n in range(3)]
        answers[1].cancel()
        database.gate.set()
        assert [await answers[0], await answers[2]] == [0, 4]


async def test_the_end_tells_everybody_who_waits():
    database = Database()
    database.gate.clear()
    async with serving(database, rows_max=2) as group:
        answers = [group.submit(n) for n in range(5)]
        await asyncio.sleep(0.05)  # two of them are on their way, three wait
    for answer in answers:
        with pytest.raises(ClosedError):
            await answer
