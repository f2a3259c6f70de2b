"""The timer of the lanes, on the worker's own event loop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from pipeline.delivery.alarm import Alarm

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Rings:
    """Counts, and can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self.rang = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.rang.set()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_it_goes_off_once_at_the_earliest_of_its_times(new_loop):
    async def run() -> int:
        loop = asyncio.get_running_loop()
        rings = Rings()
        alarm = Alarm(rings)
        for seconds in (3_600, 0.05, 1_800):
            alarm.set(loop.time() + seconds)
        async with asyncio.timeout(60):
            await rings.rang.wait()
        return rings.count

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == 1


@pytest.mark.parametrize("new_loop", LOOPS)
def test_it_is_set_again_also_where_its_time_rounds_to_now(new_loop, monkeypatch):
    """uvloop then runs the call at once, by a handle that knows no time."""
    monkeypatch.setattr("pipeline.delivery.alarm.SOONEST_SECONDS", 0.0)

    async def run() -> int:
        loop = asyncio.get_running_loop()
        rings = Rings()
        alarm = Alarm(rings)
        for _ in range(1_000):
            alarm.set(loop.time())
            alarm.set(loop.time() - 1)
        await rings.rang.wait()
        return rings.count

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == 1


@pytest.mark.parametrize("new_loop", LOOPS)
def test_after_it_went_off_it_can_be_set_to_a_later_time(new_loop):
    async def run() -> int:
        loop = asyncio.get_running_loop()
        rings = Rings()
        alarm = Alarm(rings)
        for _ in range(3):
            rings.rang.clear()
            alarm.set(loop.time() + 0.002)
            await rings.rang.wait()
        return rings.count

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == 3
