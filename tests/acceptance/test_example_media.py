"""examples/media: its story on the real pipeline."""

from __future__ import annotations

import pytest

from examples.media import ground, story
from tests.fixtures.components import StartComponent
from tests.support.example_stage import assert_contracts_hold, stage_of


def test_the_story_holds_and_every_record_of_it_fits_the_contracts(
    request: pytest.FixtureRequest, settings_values: dict[str, object], component: StartComponent
) -> None:
    proved: list[str] = []
    with stage_of(request, component, sources=story.SOURCES, proved=proved) as stage:
        story.play(stage)
    assert len(proved) == 16
    records = assert_contracts_hold(settings_values)
    assert records["dispatch"] >= len(ground.PUBLISHERS) * ground.BURST
