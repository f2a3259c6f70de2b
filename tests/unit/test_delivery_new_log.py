"""A partition whose log was begun anew is begun anew here too, unless offsets of the old log are still open."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.tracker import CompletionTracker
from pipeline.delivery.app import build_app
from pipeline.delivery.transport import TP, NewLogError, Origin
from pipeline.settings import load_settings

HERE = TP("t", 0)
GENERATION = 3


class Fetched:
    def __init__(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
async def consumer() -> Any:
    app, _ = build_app(load_settings())
    consumer = app.consumer
    consumer._trackers = {HERE: CompletionTracker(GENERATION)}
    return consumer


def fetch(consumer: Any, offsets: range, *, end: int | None) -> None:
    consumer.note_fetched(GENERATION, {HERE: [Fetched(n) for n in offsets]}, {HERE: offsets.stop}, {HERE: end})


async def test_committed_offsets_behind_the_end_are_forgotten(consumer: Any) -> None:
    consumer._read_offset[HERE] = consumer._committed_offset[HERE] = 100
    fetch(consumer, range(2), end=2)
    assert consumer._read_offset[HERE] is None
    assert consumer.admit(Origin("t", 0, GENERATION, 0))
    assert consumer.done(Origin("t", 0, GENERATION, 0))
    assert consumer._filter_committable_offsets([HERE]) == {HERE: 1}


async def test_open_offsets_of_the_old_log_are_never_taken_for_the_new_ones(consumer: Any) -> None:
    fetch(consumer, range(20), end=20)
    with pytest.raises(NewLogError, match="t/0 was made again while 20 messages"):
        fetch(consumer, range(1), end=1)
    assert not consumer.done(Origin("t", 0, GENERATION, 0))
    assert consumer._filter_committable_offsets([HERE]) == {}


@pytest.mark.parametrize(("offsets", "end"), [(range(5, 20), 20), (range(20, 20), 18), (range(5, 20), None)])
async def test_reading_again_and_a_leader_that_lags_are_no_new_log(
    consumer: Any, offsets: range, end: int | None
) -> None:
    fetch(consumer, range(20), end=20)
    fetch(consumer, offsets, end=end)
    assert consumer.unsettled(HERE) == 20
