"""Invariant 6: a Kafka offset is committed only when all before it are settled or parked."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import pytest

from tests.support.delivery_world import PARTITIONS, Received, Reply, World, opened, wait_until


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def offsets_of(world: World) -> dict[int, dict[int, tuple[str, int]]]:
    """(delivery, dispatch_seq) by offset, by partition."""
    found: dict[int, dict[int, tuple[str, int]]] = {number: {} for number in range(PARTITIONS)}
    for record in world.records(world.dispatch):
        headers = dict(record.headers())
        dispatch = headers["delivery_id"].decode(), int(headers["dispatch_seq"])
        found[record.partition()][record.offset()] = dispatch
    return found


def commits_that_passed_open_work(world: World, committed: dict[int, int]) -> list[tuple[int, int, str]]:
    """Messages below a committed offset whose delivery a worker has not touched: still enqueued under that dispatch."""
    open_dispatches = set(
        world.ledger.execute(
            "select delivery_id, dispatch_seq from outrider.delivery where state = 'enqueued'"
        ).fetchall()
    )
    return [
        (partition, offset, dispatch[0])
        for partition, messages in offsets_of(world).items()
        for offset, dispatch in messages.items()
        if offset < committed[partition] and dispatch in open_dispatches
    ]


def test_the_lowest_open_message_holds_the_commit_although_later_ones_are_done(world, component):
    """One destination hangs, the others in the same partitions are quick."""
    released = threading.Event()

    def reply(received: Received) -> Reply:
        if received.path == "/hangs":
            released.wait(60)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("hangs", timeout_seconds=60)
    names = [f"quick{n}" for n in range(20)]  # enough to share every partition
    for name in names:
        world.add_destination(name)
    for number in range(5):
        world.admit(f"h{number}", "hangs")
    world.publish()
    for number in range(20):
        world.admit(f"q{number}", *names)
    world.publish()
    component("worker")
    wait_until(lambda: world.states() == {"leased": 5, "succeeded": 400}, "all but the five are done")

    messages = offsets_of(world)
    hanging = {i for (i,) in world.ledger.execute("select delivery_id from outrider.delivery where state = 'leased'")}
    first_open = {
        partition: min((o for o, (delivery_id, _) in found.items() if delivery_id in hanging), default=None)
        for partition, found in messages.items()
    }
    ends = world.ends()
    expected = {p: ends[p] if first_open[p] is None else first_open[p] for p in range(PARTITIONS)}
    assert any(offset is not None for offset in first_open.values())
    # One commit covers all partitions: a commit that passes the open messages would never be seen like this.
    wait_until(lambda: world.committed() == expected, "each commit is at the lowest open message, or at the end")
    released.set()
    wait_until(lambda: world.committed() == ends, "once they are done, the commit reaches the end")


def test_after_kills_in_the_middle_no_commit_has_passed_open_work_and_nothing_is_lost(world, component):
    """Workers are killed with SIGKILL at random moments under load; after each kill, every commit is held against the ledger."""
    chance = random.Random(6)

    def reply(received: Received) -> Reply:
        time.sleep(chance.random() * 0.05)  # answers come in another order than requests
        return Reply(200 if chance.random() < 0.9 else 500)

    world.receiver.reply = reply
    names = [f"d{n}" for n in range(12)]
    for name in names:
        world.add_destination(name, retry_first_delay_seconds=0.01, retry_factor=1, timeout_seconds=5)
    total = 0
    settings = {"worker_session_timeout_seconds": 3, "worker_lease_margin_seconds": 2}
    worker = component("worker", **settings)
    for _ in range(4):
        for number in range(40):
            world.admit(f"e{total + number}", *names)
        total += 40
        world.publish()
        progress = sum(world.committed().values())
        wait_until(lambda before=progress: sum(world.committed().values()) > before, "some of it is committed")
        worker.kill()
        worker.wait(10)
        committed = world.committed()
        assert commits_that_passed_open_work(world, committed) == []
        worker = component("worker", **settings)
    component("reconciler", reconciler_interval_seconds=0.2)

    def all_succeeded() -> bool:
        world.publish()
        return world.states() == {"succeeded": total * len(names)}

    wait_until(all_succeeded, "everything is delivered in the end", seconds=120)
    received = defaultdict(set)
    for request in world.receiver.received:
        received[request.delivery_id].add(request.path)
    assert len(received) == total * len(names)
    assert all(len(paths) == 1 for paths in received.values())
    wait_until(lambda: world.committed() == world.ends(), "commits reach the end of every partition")


def test_a_join_and_a_leave_pass_nothing_over(world, component):
    names = [f"d{n}" for n in range(12)]
    for name in names:
        world.add_destination(name)
    first = component("worker", worker_session_timeout_seconds=3)
    total = 0
    second = None
    for step in range(6):
        for number in range(50):
            world.admit(f"e{total + number}", *names)
        total += 50
        world.publish()
        if step == 1:
            second = component("worker", worker_session_timeout_seconds=3)
        if step == 3:
            wait_until(lambda: sum(world.committed().values()) > 0, "the first worker is at work")
            first.terminate(40)
            assert first.exit_status == 0
        assert commits_that_passed_open_work(world, world.committed()) == []
    assert second is not None

    def all_succeeded() -> bool:
        world.redispatch_due()  # a worker that took over a backlog parks what its destinations have no place for
        return world.states() == {"succeeded": total * len(names)}

    wait_until(all_succeeded, "everything is delivered")
    assert len({r.delivery_id for r in world.receiver.received}) == total * len(names)
    wait_until(lambda: world.committed() == world.ends(), "commits reach the end of every partition")
