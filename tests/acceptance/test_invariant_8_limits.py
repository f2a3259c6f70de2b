"""Invariant 8: starts per destination never exceed ``burst + rate * t`` in any window, requests in flight never exceed
its limit, over all workers, rebalances and restarts.

Starts are recorded where they are decided, by a trigger of the test in the ledger, and where they arrive.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request

import pytest

from pipeline.stack.ports import free_ports
from tests.support.delivery_world import Received, Reply, World, opened, wait_until
from tests.support.start_log import LedgerStarts, ReceiverStarts, worst_excess

# What a float keeps of seconds since 1970.
CLOCK_SECONDS = 1e-5
SETTINGS = {"worker_session_timeout_seconds": 3, "worker_lease_margin_seconds": 3}


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def answer_slowly(world: World, seconds: float) -> ReceiverStarts:
    arrivals = ReceiverStarts()

    def reply(received: Received) -> Reply:
        arrivals.arrived(received.path)
        time.sleep(seconds)
        arrivals.answered(received.path)
        return Reply()

    world.receiver.reply = reply
    return arrivals


def finished(world: World, total: int) -> bool:
    world.publish()
    return world.states() == {"succeeded": total}


def test_joins_kills_and_a_worker_that_believes_it_owns_a_partition(world, component):
    rate, burst, concurrency, total = 15.0, 8, 4, 160
    world.add_destination("a", start_rate_per_second=rate, burst=burst, concurrency=concurrency, timeout_seconds=3)
    starts, arrivals = LedgerStarts(world.ledger), answer_slowly(world, 0.15)
    for number in range(total):
        world.admit(f"e{number}", "a")
    world.publish()
    component("reconciler", reconciler_interval_seconds=0.2)
    # Its lanes hold what waits, so that it has something to start when it wakes up without its partitions.
    frozen = component("worker", worker_id="frozen", worker_park_after_seconds=3600, **SETTINGS)

    def started(number: int) -> bool:
        world.publish()
        return len(starts.times("a")) >= number

    wait_until(lambda: started(20), "the first worker starts")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        killed = component("worker", worker_id="killed", **SETTINGS)
        wait_until(lambda: started(45), "another one takes over")
        os.kill(frozen.pid, signal.SIGCONT)
        wait_until(lambda: started(65), "both are at it")
        killed.kill()
        component("worker", worker_id="joins", **SETTINGS)
        wait_until(lambda: started(90), "one joins after a kill")
        killed.start()
        wait_until(lambda: finished(world, total), "everything is delivered")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    times = starts.times("a")
    assert len(times) >= total
    assert worst_excess(times, rate_per_second=rate, burst=burst) <= rate * CLOCK_SECONDS
    assert starts.most_in_flight("a") <= concurrency
    # Between its claim and its arrival each start holds one of the places: no more than those can be late.
    assert worst_excess(arrivals.times["/a"], rate_per_second=rate, burst=burst) <= concurrency + rate * 0.1
    assert arrivals.most_in_flight["/a"] <= concurrency


def test_a_rate_is_kept_without_windows(world, component):
    """The starts beyond the burst come one by one, as far apart as the rate says, and not in bundles."""
    rate, burst, total = 10.0, 2, 40
    world.add_destination("a", start_rate_per_second=rate, burst=burst)
    starts = LedgerStarts(world.ledger)
    for number in range(total):
        world.admit(f"e{number}", "a")
    world.publish()
    component("reconciler", reconciler_interval_seconds=0.2)
    component("worker", **SETTINGS)
    wait_until(lambda: finished(world, total), "everything is delivered")
    times = starts.times("a")
    assert worst_excess(times, rate_per_second=rate, burst=burst) <= rate * CLOCK_SECONDS
    # No quarter of a second has more than two and a half starts and the burst, wherever it begins.
    assert max(sum(at <= other < at + 0.25 for other in times) for at in times) <= burst + rate * 0.25 + 1e-3


def test_a_changed_limit_holds_from_its_commit_on(world, component):
    total = 120
    world.add_destination("a", start_rate_per_second=100, burst=10, concurrency=20)
    world.add_destination("b", start_rate_per_second=0.05, burst=1)
    starts, arrivals = LedgerStarts(world.ledger), answer_slowly(world, 0.2)
    for number in range(total):
        world.admit(f"a{number}", "a")
    for number in range(30):
        world.admit(f"b{number}", "b")
    world.publish()
    component("reconciler", reconciler_interval_seconds=0.2)
    component("worker", **SETTINGS)
    wait_until(lambda: len(starts.times("a")) >= 20, "it runs")
    world.ledger.execute(
        "update outrider.destination set start_rate_per_second = 8, burst = 3, concurrency = 2 where destination_id = 'a'"
    )
    (changed_at,) = world.ledger.execute("select extract(epoch from clock_timestamp())::double precision").fetchone()
    # At the old rate what waits for b would take ten minutes.
    world.ledger.execute("update outrider.destination set start_rate_per_second = 500 where destination_id = 'b'")
    wait_until(lambda: finished(world, total + 30), "both are delivered")
    after = starts.times("a", since=changed_at)
    assert len(after) > 10
    assert worst_excess(after, rate_per_second=8, burst=3) <= 8 * CLOCK_SECONDS
    late = world.ledger.execute(
        "select max(in_flight) from public.start_log where destination_id = 'a' and at > %s + 5", (changed_at,)
    ).fetchone()
    assert late == (2,)
    assert arrivals.most_in_flight["/a"] <= 20


def test_first_tries_go_ahead_of_retries_and_both_go(world, component):
    order: list[tuple[str, str]] = []
    released = threading.Event()

    def reply(received: Received) -> Reply:
        attempt = received.headers["outrider-attempt"]
        order.append((received.headers["x-kind"], attempt))
        if received.headers["x-kind"] == "old" and attempt == "1":
            return Reply(500)
        released.wait(60)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("a", concurrency=1, retry_first_delay_seconds=0.01, retry_max_delay_seconds=0.01)
    for number in range(8):
        world.admit(f"old{number}", "a", headers={"x-kind": "old"})
    world.publish()
    (port,) = free_ports(1)
    component("worker", health_port=port, worker_park_after_seconds=3600, worker_breaker_failures=1000, **SETTINGS)
    wait_until(lambda: world.states() == {"pending": 8}, "each has failed once")
    # One holds the only place while the retries and the new ones come.
    world.admit("holds", "a", headers={"x-kind": "holds"})
    world.publish()
    wait_until(lambda: ("holds", "1") in order, "the place is taken")
    world.redispatch_due()
    for number in range(24):
        world.admit(f"new{number}", "a", headers={"x-kind": "new"})
    world.publish()
    wait_until(lambda: metric(port, "outrider_worker_waiting") == 32, "the worker holds them all in its lane")
    released.set()
    wait_until(lambda: world.states() == {"succeeded": 33}, "everything is delivered")
    kinds = [kind for kind, attempt in order if (kind, attempt) in (("old", "2"), ("new", "1"))]
    assert len(kinds) == 32
    # Though the retries came first: three new ones go before each of them.
    assert kinds[:3] == ["new"] * 3
    assert kinds[3] == "old"
    for number in range(1, 6):
        assert kinds[: 4 * number].count("old") == number


def metric(port: int, name: str) -> float:
    """A metric without labels, from the component at that port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))
