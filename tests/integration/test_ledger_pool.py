"""Whoever is cancelled while a pool has no connection for it ends, in whatever moment that happens."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.ledger.pool import open_pool

TURNS = 12
"""Of the event loop; a connection that is given back reaches who waits for it within fewer."""


async def turn() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(TURNS))
async def test_a_cancellation_is_not_lost_when_the_connection_comes_in_the_same_turn(
    empty_database: str, turns: int
) -> None:
    async with open_pool(empty_database, 1, "test") as pool:
        held = await pool.getconn()
        waiting = asyncio.create_task(pool.getconn())
        while not pool.get_stats().get("requests_waiting"):
            await turn()
        for _ in range(TURNS):
            await turn()
        giving_back = asyncio.create_task(pool.putconn(held))
        for _ in range(turns):
            await turn()
        is_too_late = not waiting.cancel()
        await giving_back
        if is_too_late:
            await pool.putconn(await waiting)
        else:
            with pytest.raises(asyncio.CancelledError):
                await waiting
        # It is there for the next one.
        async with asyncio.timeout(30), pool.connection() as connection:
            await connection.execute("select 1")


async def test_a_timeout_while_it_waits_is_a_timeout(empty_database: str) -> None:
    async with open_pool(empty_database, 1, "test") as pool, pool.connection():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), pool.connection():
                raise AssertionError("there was none to give")
