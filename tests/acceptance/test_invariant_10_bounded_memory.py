"""Invariant 10: memory is bounded by configuration, not by backlog.

The short form of `make bench NAME=delivery ARGS="--only memory"`, which compares a million waiting deliveries with ten thousand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.delivery_world import Reply, World, opened, wait_until

FEW, MANY = 2_000, 16_000
BODY = b"x" * 1_000
SETTINGS = {
    "worker_partition_high": 400,
    "worker_partition_low": 200,
    "worker_lane_depth": 100,
    "worker_session_timeout_seconds": 3,
}


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def peak_bytes(pid: int) -> int:
    """The most memory that the process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say")


def enqueue(world: World, count: int) -> None:
    """So many messages for one destination."""
    world.ledger.execute("update outrider.destination set backlogged_until = null")
    world.ledger.execute(
        "select count(*) from generate_series(1, %(count)s) as n, "
        "lateral outrider.admit(%(count)s || '-' || n, 'test.event', %(body)s, destinations => array['a'])",
        {"count": count, "body": BODY},
    )
    assert world.publish() == count


def test_a_worker_with_many_waiting_takes_no_more_memory_than_with_few(world, component):
    world.receiver.reply = lambda received: Reply(503, {"retry-after": "3600"})
    # So generous that admission holds nothing back: the worker is to be the one that bears it.
    world.add_destination("a", start_rate_per_second=100_000, burst=100_000)
    peaks = {}
    for count in (FEW, MANY):
        enqueue(world, count)
        worker = component("worker", **SETTINGS)
        wait_until(lambda: world.committed() == world.ends(), "every message was read and given back", 120)
        peaks[count] = peak_bytes(worker.pid)
        worker.terminate(40)
    assert world.states() == {"pending": FEW + MANY}
    assert peaks[MANY] <= 1.2 * peaks[FEW], peaks
