"""Invariant 4: at most one live lease; a result counts only under its own attempt."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter

import pytest

from pipeline.ledger.deliveries import Claimed, ClaimRequest, Settlement, claim, settle
from pipeline.ledger.pool import open_pool
from tests.support.delivery_world import Received, Reply, opened, wait_until
from tests.support.settlements import BREAKER, settlement


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


async def test_of_many_claims_of_one_delivery_one_succeeds(world, role_dsns):
    world.add_destination("a")
    ids = [world.admit(f"e{n}", "a")[0] for n in range(20)]
    requests = [ClaimRequest(delivery_id, 1, b"") for delivery_id in ids]

    async with open_pool(role_dsns["worker"], 10, "test") as pool:
        answers = await asyncio.gather(
            *(claim(pool, f"w{n}", requests, lease_margin_seconds=15.0) for n in range(10)),
            *(claim(pool, f"w{n}", requests[::-1], lease_margin_seconds=15.0) for n in range(10, 20)),
        )
    claimed = [answer for page in answers for answer in page if isinstance(answer, Claimed)]
    assert Counter(c.delivery_id for c in claimed) == dict.fromkeys(ids, 1)
    assert {c.attempt for c in claimed} == {1}


async def test_a_result_under_another_attempt_is_recorded_as_late_and_moves_nothing(world, role_dsns):
    world.add_destination("a")
    (delivery_id,) = world.admit("e", "a")

    def result(attempt: int, state: str) -> Settlement:
        delay_seconds = 3600.0 if state == "pending" else None
        return settlement(delivery_id, attempt, state=state, delay_seconds=delay_seconds, response_excerpt=b"")

    async with open_pool(role_dsns["worker"], 2, "test") as pool:
        (claimed,) = await claim(pool, "w1", [ClaimRequest(delivery_id, 1, b"")], lease_margin_seconds=15.0)
        assert isinstance(claimed, Claimed)
        before = world.delivery(delivery_id)
        for attempt in (0, 2, 99):
            for state in ("succeeded", "pending", "dead"):
                assert await settle(pool, "w2", [result(attempt, state)], BREAKER) == [False]
        assert world.delivery(delivery_id) == before
        assert await settle(pool, "w1", [result(1, "succeeded")], BREAKER) == [True]
        settled = world.delivery(delivery_id)
        # Once it counted, not even its own attempt counts again.
        assert await settle(pool, "w1", [result(1, "dead")], BREAKER) == [False]
        assert world.delivery(delivery_id) == settled
    assert settled["state"] == "succeeded"
    assert Counter(a["result"] for a in world.attempts(delivery_id)) == {"late": 10, "succeeded": 1}


def test_two_workers_that_believe_they_own_a_partition_send_no_attempt_twice(world, component):
    """A worker is frozen with messages in its lanes, loses its partitions, and goes on as if nothing had happened."""
    gate = threading.Event()

    def reply(received: Received) -> Reply:
        gate.wait(60)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("a", timeout_seconds=60)
    total = 60
    for number in range(total):
        world.admit(f"e{number}", "a")
    world.publish()
    # Its lanes hold what waits, so that it has something to start when it wakes up.
    settings = {"worker_session_timeout_seconds": 3, "worker_park_after_seconds": 3600, "worker_concurrency": 8}
    frozen = component("worker", worker_id="frozen", **settings)
    wait_until(lambda: len(world.receiver.received) == 4, "the first worker has its requests in flight")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        component("worker", worker_id="other", **settings)
        wait_until(lambda: lease_owners(world) == {"frozen": 4, "other": 4}, "the other one takes over")
        gate.set()
        os.kill(frozen.pid, signal.SIGCONT)

        def finished() -> bool:
            world.redispatch_due()
            return world.states() == {"succeeded": total}

        wait_until(finished, "everything is delivered")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    sent = Counter((r.delivery_id, r.headers["outrider-attempt"]) for r in world.receiver.received)
    assert set(sent.values()) == {1}, "an attempt was sent twice"
    assert len(sent) == total
    logged = world.ledger.execute(
        "select delivery_id, attempt, count(*) from outrider.delivery_attempt group by 1, 2 having count(*) > 1"
    ).fetchall()
    assert logged == []


def lease_owners(world) -> dict[str, int]:
    """Leases by the name that a worker was given."""
    return dict(
        world.ledger.execute(
            "select split_part(lease_owner, '.', 1), count(*) from outrider.delivery where state = 'leased' group by 1"
        ).fetchall()
    )


def test_a_result_that_comes_after_its_lease_is_late_and_the_next_attempt_counts(world, component):
    """A worker is frozen in the middle of a request for longer than its lease."""
    released = threading.Event()

    def reply(received: Received) -> Reply:
        if received.headers["outrider-attempt"] == "1":
            released.wait(60)
        return Reply(200 if received.headers["outrider-attempt"] == "1" else 202)

    world.receiver.reply = reply
    world.add_destination("a", timeout_seconds=3)
    (delivery_id,) = world.admit("e", "a")
    world.publish()
    settings = {"worker_session_timeout_seconds": 3, "worker_lease_margin_seconds": 2}
    frozen = component("worker", worker_id="frozen", **settings)
    wait_until(lambda: len(world.receiver.received) == 1, "the first attempt is in flight")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        component("reconciler", reconciler_interval_seconds=0.2)
        component("worker", worker_id="other", **settings)

        def succeeded() -> bool:
            world.publish()
            return world.states() == {"succeeded": 1}

        wait_until(succeeded, "the lease runs out, and another worker delivers")
        before = world.delivery(delivery_id)
        assert (before["attempt"], before["last_status"]) == (2, 202)
        released.set()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    wait_until(lambda: any(a["result"] == "late" for a in world.attempts(delivery_id)), "the late result is recorded")
    assert world.delivery(delivery_id) == before
    log = {(a["attempt"], a["result"], a["worker_id"].partition(".")[0]) for a in world.attempts(delivery_id)}
    assert (1, "late", "frozen") in log
    assert (2, "succeeded", "other") in log
    assert {r.delivery_id for r in world.receiver.received} == {delivery_id}
