"""examples/shipments: its story on the real pipeline, and what its door refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from examples.shipments import story
from examples.stage import Stage
from tests.fixtures.components import StartComponent
from tests.support.example_stage import assert_contracts_hold, stage_of


@pytest.fixture
def proved() -> list[str]:
    return []


@pytest.fixture
def stage(request: pytest.FixtureRequest, component: StartComponent, proved: list[str]) -> Iterator[Stage]:
    with stage_of(request, component, sources=story.SOURCES, proved=proved) as stage:
        yield stage


def test_the_story_holds_and_every_record_of_it_fits_the_contracts(
    stage: Stage, proved: list[str], settings_values: dict[str, object]
) -> None:
    story.play(stage)
    assert len(proved) == 13
    records = assert_contracts_hold(settings_values)
    deliveries = len(story.SUBSCRIBERS) * (len(story.MINUTE) + len(story.GAP) + 1)
    assert records["dispatch"] >= deliveries
    assert records["attempts"] >= deliveries


def body(**changes: object) -> bytes:
    return json.dumps({"shipment": "s-1", "version": 1, "status": "packed", **changes}).encode()


def test_the_door_takes_only_what_is_well_formed_and_known(stage: Stage) -> None:
    story.prepare(stage)
    crowd = [f"crowd-{number}" for number in range(101)]
    for name in crowd:
        stage.add_destination(name)
    stage.admin.execute("insert into shipments.subscriber select 'crowded', unnest(%s::text[])", (crowd,))
    stage.admin.execute("update outrider.destination set enabled = false where destination_id = 'crowd-0'")
    stage.admin.execute("insert into shipments.subscriber values ('off', 'crowd-0')")
    with story.endpoint(stage) as caller:
        refused = {
            "no token": (caller.post(body(), token="wrong"), 401),
            "no JSON": (caller.post(b"{"), 400),
            "no UTF-8": (caller.post(b'{"shipment":"\xff"}'), 400),
            "a field too many": (caller.post(body(extra=1)), 422),
            "version 0": (caller.post(body(version=0)), 422),
            "a text as version": (caller.post(body(version="1")), 422),
            "an empty shipment": (caller.post(body(shipment="")), 422),
            "a shipment of too many bytes": (caller.post(body(shipment="é" * 150)), 422),
            "a NUL": (caller.post(body(shipment="a\0b")), 422),
            "a body too large": (caller.post(body(status="x" * 20_000)), 413),
            "too many subscribers": (caller.post(body(shipment="crowded")), 422),
            "a subscriber that is switched off": (caller.post(body(shipment="off")), 422),
        }
        assert {name: answer[0] for name, (answer, _) in refused.items()} == {
            name: status for name, (_, status) in refused.items()
        }
        assert stage.value("select count(*) from outrider.event") == 0
        assert stage.value("select count(*) from shipments.update") == 0, "what is refused leaves no trace"
        assert caller.post(body()) == (200, {"accepted": 3})
        assert caller.post(body(status="lost"))[0] == 409
        assert caller.post(body(shipment="nobody listens")) == (200, {"accepted": 0})
    assert not stage.receiver.requests
