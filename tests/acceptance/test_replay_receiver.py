"""What a receiver sees of a replay: the same ids and the same bytes, each once more, and live traffic ahead of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.components import StartComponent
from tests.support.delivery_world import World, opened, wait_until
from tests.support.program import Outrider
from tests.support.replay_world import planned, ran

LOST = 150
LIVE = 20


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme", start_rate_per_second=100, burst=20)
        yield world


def test_lost_effects_come_again_under_their_ids_and_live_traffic_goes_first(
    world: World, component: StartComponent, outrider: Outrider, tmp_path: Path
) -> None:
    component("connector")
    component("worker")
    component("reconciler", reconciler_interval_seconds=0.2)
    payloads = {
        world.admit(f"lost-{number}", "acme", payload=b"\x00%d\xff" % number)[0]: b"\x00%d\xff" % number
        for number in range(LOST)
    }
    wait_until(lambda: world.states() == {"succeeded": LOST}, "all have been delivered")
    first = Counter(received.delivery_id for received in world.receiver.received)
    assert first == dict.fromkeys(payloads, 1)

    # The receiver has lost them, and says which.
    listed = tmp_path / "ids"
    listed.write_text("\n".join(payloads))
    plan = planned(outrider, tmp_path / "plan", "--ledger", "--ids-from", str(listed), "--mode", "all", "--force")
    assert sum(count["deliveries"] for count in plan["counts"] if count["verdict"] == "replay") == LOST
    assert plan["slowest_destination"] == "acme"
    before = len(world.receiver.received)
    done = ran(outrider, tmp_path / "plan")
    assert done["replayed"] == LOST
    live = {world.admit(f"live-{number}", "acme")[0] for number in range(LIVE)}
    wait_until(lambda: world.states() == {"succeeded": LOST + LIVE}, "all is delivered again, and the live ones")

    # A message that lies in the topic twice, as after a rewind, is a no-op.
    world.publish_again()
    component("worker")
    again = world.receiver.received[before:]
    seen = Counter(received.delivery_id for received in again)
    assert seen == {**dict.fromkeys(payloads, 1), **dict.fromkeys(live, 1)}
    for received in again:
        if received.delivery_id in payloads:
            assert received.body == payloads[received.delivery_id]
            assert received.headers["idempotency-key"] == received.delivery_id
    wait_until(lambda: world.committed() == world.ends(), "the doubled messages are read")
    assert len(world.receiver.received) == before + LOST + LIVE
