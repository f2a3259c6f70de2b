"""A worker that holds messages and does not move says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline.delivery.stall_watch import STALL_SECONDS, StallWatch
from pipeline.delivery.worker import Worker
from pipeline.settings import load_settings


def test_it_stalls_when_messages_wait_and_nothing_moves() -> None:
    watch = StallWatch(100.0)
    assert not watch.is_stalled(1, 100.0 + STALL_SECONDS - 1)
    assert watch.is_stalled(1, 100.0 + STALL_SECONDS)
    assert not watch.is_stalled(0, 100.0 + STALL_SECONDS)
    watch.moved(100.0 + STALL_SECONDS)
    assert not watch.is_stalled(1, 100.0 + STALL_SECONDS)


def test_after_an_idle_time_the_first_message_is_no_stall() -> None:
    watch = StallWatch(0.0)
    watch.look(0, 1000.0)
    assert not watch.is_stalled(1, 1000.1)
    watch.look(1, 1000.0 + STALL_SECONDS)
    assert watch.is_stalled(1, 1000.0 + STALL_SECONDS)


@pytest.mark.parametrize(("is_stalled", "answer"), [(True, (False, "stalled")), (False, (True, "running"))])
def test_a_stalled_worker_is_not_ready(is_stalled, answer) -> None:
    worker = Worker(load_settings())
    worker._state = "running"
    worker._app = SimpleNamespace(rebalancing=False)
    worker._flow = SimpleNamespace(is_stalled=is_stalled)  # type: ignore[assignment]
    assert worker.ready() == answer
