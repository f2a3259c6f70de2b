"""Moving the delivery group at random, forwards and back and under load, loses nothing and repeats no effect."""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.components import StartComponent
from tests.support.delivery_world import PARTITIONS, Received, Reply, World, opened, wait_until
from tests.support.program import Outrider

ROUNDS = 3
DESTINATIONS = [f"d{number}" for number in range(12)]  # enough to share every partition
UNREAD_AT_LEAST = 60
ADMIT_EVERY_SECONDS = 0.2  # a steady load that the smallest machine carries beside everything else
WORKER = {"worker_session_timeout_seconds": 3, "worker_lease_margin_seconds": 5}
COUNTED = ("again_stale", "again_current", "skipped_stale", "skipped_current")


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        # A dispatch that nobody claims in this time counts as lost.
        world.ledger.execute("update outrider.ledger_setting set transport_timeout_seconds = 2")
        for name in DESTINATIONS:
            world.add_destination(name, timeout_seconds=10, retry_first_delay_seconds=0.05, retry_factor=1)
        yield world


@contextmanager
def load(database: str) -> Iterator[dict[str, bytes]]:
    """An application that admits all the time while the block runs; the body of each delivery that it saw committed."""
    bodies: dict[str, bytes] = {}
    stop = threading.Event()

    def admit() -> None:
        with psycopg.connect(database, autocommit=True) as application:
            number = 0
            while not stop.wait(ADMIT_EVERY_SECONDS):
                number += 1
                body = b'{"number": %d}' % number
                rows = application.execute(
                    "select delivery_id from outrider.admit(%s, 'test.happened', %s, destinations => %s)",
                    (f"event-{number}", body, DESTINATIONS),
                ).fetchall()
                bodies.update((delivery_id, body) for (delivery_id,) in rows)

    thread = threading.Thread(target=admit)
    thread.start()
    try:
        yield bodies
    finally:
        stop.set()
        thread.join(30)


def unread(world: World) -> int:
    committed = world.committed()
    return sum(end - committed[partition] for partition, end in world.ends().items())


def move_at_random(outrider: Outrider, world: World, chance: random.Random, folder: Path) -> Any:
    """Each partition somewhere back, somewhere ahead, or to its end; the plan."""
    ends, committed = world.ends(), world.committed()

    def target(partition: int) -> int:
        start, middle, end = 0, committed[partition], ends[partition]
        return chance.choice((chance.randint(start, middle), chance.randint(middle, end), end))

    targets, plan = folder / "targets.csv", folder / "move.plan"
    for file in (targets, plan):
        file.unlink(missing_ok=True)
    targets.write_text("".join(f"{world.dispatch},{number},{target(number)}\n" for number in range(PARTITIONS)))
    planned = outrider(
        "offsets", "plan", world.group, "--from-file", str(targets), "--scan", "--out", str(plan), "--reason", "drill",
        "--json",
    )  # fmt: skip
    assert planned.exit_code == 0, planned.stderr
    applied = outrider("offsets", "apply", str(plan), "--allow-skip", "--wait-seconds", "30", "--watch-seconds", "0")
    assert applied.exit_code == 0, applied.stderr
    assert world.committed() == {move["partition"]: move["target"] for move in planned.json["moves"]}
    return planned.json


def test_random_rewinds_and_skips_under_load_lose_nothing_and_repeat_no_effect(
    world: World, component: StartComponent, outrider: Outrider, database: str, tmp_path: Path
) -> None:
    moves, replies = random.Random(11), random.Random(12)
    answered_well: Counter[str] = Counter()
    lock = threading.Lock()

    def reply(received: Received) -> Reply:
        with lock:
            status = 200 if replies.random() < 0.95 else 500
            answered_well[received.delivery_id] += status == 200
        return Reply(status)

    world.receiver.reply = reply
    component("connector")
    component("reconciler", reconciler_interval_seconds=0.2)
    moved: Counter[str] = Counter()
    with load(database) as bodies:
        worker = component("worker", **WORKER)
        for _ in range(ROUNDS):
            seen = len(world.receiver.received)
            wait_until(lambda seen=seen: len(world.receiver.received) > seen + 50, "deliveries go out")
            worker.terminate(40)
            assert worker.exit_status == 0
            wait_until(lambda: unread(world) >= UNREAD_AT_LEAST, "messages are waiting, so that a skip loses some")
            plan = move_at_random(outrider, world, moves, tmp_path)
            moved.update({name: plan["ledger"][name]["at_most"] for name in COUNTED})
            assert plan["ledger"]["broken"] == 0
            worker = component("worker", **WORKER)
    # Otherwise this proves nothing: messages were read again that mean nothing, and some were skipped that do.
    assert moved["again_stale"] >= 100, moved
    assert moved["skipped_current"] >= 20, moved

    wait_until(lambda: world.states() == {"succeeded": len(bodies)}, f"all {len(bodies)} are delivered", 120)
    lost = world.ledger.execute(
        "select sum((counts->>'lost')::int) from outrider.run where kind = 'reconcile'"
    ).fetchone()
    assert lost is not None
    assert lost[0] >= moved["skipped_current"], "the reconciler found what was skipped"

    paths: dict[str, set[str]] = defaultdict(set)
    for received in world.receiver.received:
        paths[received.delivery_id].add(received.path)
        assert hashlib.sha256(received.body).digest() == hashlib.sha256(bodies[received.delivery_id]).digest()
    assert paths.keys() == bodies.keys(), "nothing is lost, and nothing is there that was not admitted"
    assert all(len(of_one) == 1 for of_one in paths.values())
    # A receiver was sent a delivery again after it had taken it only where the sender could not know that it had.
    unknown = {
        delivery_id
        for (delivery_id,) in world.ledger.execute(
            "select delivery_id from outrider.delivery_attempt where ambiguous or result = 'late'"
        ).fetchall()
    }
    assert {delivery_id for delivery_id, times in answered_well.items() if times > 1} <= unknown
    wait_until(lambda: world.committed() == world.ends(), "the group comes to the end of every partition")
    assert len(outrider("runs", "list", "--kind", "offsets.apply", "--json").json["runs"]) == ROUNDS
