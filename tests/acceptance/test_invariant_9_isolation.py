"""Invariant 9: a destination cannot delay another: hanging, throttled, failing, or with a flood waiting.

Nothing here is timed: what is asserted is that the healthy ones are served while the others still have everything before
them, which they could not be if they stood in one queue.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

import pytest

from tests.support.delivery_world import PARTITIONS, Received, Reply, opened, wait_until

# So many that each partition has some of them, beside the destinations that are not.
HEALTHY = [f"healthy-{number}" for number in range(3 * PARTITIONS)]
SERVED = "state = 'succeeded' and destination_id like 'healthy-%'"
SETTINGS = {"worker_session_timeout_seconds": 3}


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def by_destination(world, condition: str) -> dict[str, int]:
    return dict(
        world.ledger.execute(
            f"select destination_id, count(*) from outrider.delivery where {condition} group by 1"
        ).fetchall()
    )


def test_hanging_throttled_failing_and_flooded_destinations_cost_the_healthy_ones_nothing(world, component):
    released = threading.Event()

    def reply(received: Received) -> Reply:
        match received.path:
            case "/hanging":
                released.wait(120)
                return Reply()
            case "/throttled":
                return Reply(429, {"retry-after": "3600"})
            case "/failing":
                return Reply(500)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("hanging", concurrency=64, timeout_seconds=120)
    world.add_destination("throttled")
    world.add_destination("failing")
    world.add_destination("slow", start_rate_per_second=0.01, burst=1)
    for name in HEALTHY:
        world.add_destination(name)
    for number in range(400):
        world.admit(f"bad{number}", "hanging", "throttled", "failing", "slow")
    for number in range(20):
        world.admit(f"good{number}", *HEALTHY)
    world.publish()
    component("reconciler", reconciler_interval_seconds=0.2)
    # No more places than the hanging one would take alone.
    component("worker", worker_concurrency=64, **SETTINGS)

    def served() -> bool:
        world.publish()
        return by_destination(world, SERVED) == dict.fromkeys(HEALTHY, 20)

    wait_until(served, "every healthy destination has all of its deliveries")
    assert sum(by_destination(world, "state = 'succeeded' and destination_id = 'hanging'").values()) == 0
    # A second round, while whatever they could fill is full.
    for number in range(20):
        world.admit(f"more{number}", *HEALTHY)

    def served_again() -> bool:
        world.publish()
        return by_destination(world, SERVED) == dict.fromkeys(HEALTHY, 40)

    wait_until(served_again, "and all of the second round")
    unsettled = by_destination(world, "settled_at is null")
    assert unsettled["hanging"] == 400
    assert unsettled["throttled"] == 400
    assert unsettled["failing"] == 400
    assert unsettled["slow"] >= 398
    # Deferring cost no attempt: nobody had more of them than were sent.
    sent = Counter((r.path[1:], r.headers["outrider-attempt"]) for r in world.receiver.received)
    attempts = by_destination(world, "attempt > 1 and destination_id = 'slow'")
    assert attempts == {}
    assert sum(count for (name, _), count in sent.items() if name == "slow") <= 2
    # Each waits for a reason that is its own.
    reasons = defaultdict(set)
    for name, reason in world.ledger.execute(
        "select distinct destination_id, waiting_reason from outrider.delivery where state = 'pending'"
    ).fetchall():
        reasons[name].add(reason)
    assert reasons["slow"] == {"rate"}
    assert "throttled" in reasons["throttled"]

    def breaker_has_opened() -> bool:
        row = world.ledger.execute(
            "select open_until is not null from outrider.destination_pace where destination_id = 'failing'"
        ).fetchone()
        return row == (True,)

    wait_until(breaker_has_opened, "the failing destination is cut off")
    released.set()


def test_a_flood_in_one_transaction_stays_out_of_the_others_way(world, component):
    """The ledger keeps what a destination cannot take soon, so it never lies in front of others' messages."""
    rate, burst, flood = 5.0, 10, 5_000
    world.add_destination("flooded", start_rate_per_second=rate, burst=burst)
    for name in HEALTHY:
        world.add_destination(name)
    world.ledger.execute(
        "select count(*) from generate_series(1, %s) as n, "
        "lateral outrider.admit('flood' || n, 'test.flood', '{}'::bytea, destinations => array['flooded'])",
        (flood,),
    )
    assert world.publish() == burst + 2 * rate
    held = world.ledger.execute(
        "select count(*), count(distinct waiting_reason), max(waiting_reason), "
        "extract(epoch from max(next_attempt_at) - min(next_attempt_at)) from outrider.delivery where state = 'pending'"
    ).fetchone()
    assert held[:3] == (flood - burst - 2 * rate, 1, "rate")
    # Their times lie along the rate.
    assert float(held[3]) == pytest.approx((flood - burst - 2 * rate) / rate, rel=0.05)
    for number in range(10):
        world.admit(f"good{number}", *HEALTHY)
    world.publish()
    component("reconciler", reconciler_interval_seconds=0.2)
    component("worker", **SETTINGS)
    wait_until(
        lambda: (
            by_destination(world, "state = 'succeeded' and destination_id <> 'flooded'") == dict.fromkeys(HEALTHY, 10)
        ),
        "the healthy ones are served",
    )
    assert by_destination(world, "settled_at is null")["flooded"] > flood / 2

    # What a worker has parked tells admission too: now even small transactions are held back.
    def marked() -> bool:
        world.publish()
        return world.ledger.execute(
            "select backlogged_until > now() from outrider.destination where destination_id = 'flooded'"
        ).fetchone() == (True,)

    # The lane is given more than it may hold, as after a change of its rate.
    world.ledger.execute(
        "update outrider.destination set start_rate_per_second = 0.1, burst = 1 where destination_id = 'flooded'"
    )
    wait_until(marked, "the worker parks what it cannot start, and marks the destination")
    (delivery_id,) = world.admit("one more", "flooded")
    assert world.delivery(delivery_id)["waiting_reason"] == "rate"


def test_an_open_breaker_outlives_the_worker_and_one_delivery_at_a_time_probes(world, component):
    broken = threading.Event()
    broken.set()
    lock, now, most = threading.Lock(), [0], [0]

    def reply(received: Received) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            if not broken.is_set():
                return Reply()
            threading.Event().wait(0.05)  # so that two at once would be seen
            return Reply(503)
        finally:
            with lock:
                now[0] -= 1

    world.receiver.reply = reply
    world.add_destination("a", retry_first_delay_seconds=0.01, retry_max_delay_seconds=0.01, retry_max_attempts=1000)
    for number in range(100):
        world.admit(f"e{number}", "a")
    world.publish()
    component("reconciler", reconciler_interval_seconds=0.2)
    settings = {"worker_breaker_failures": 5, "worker_breaker_first_seconds": 0.5, "worker_breaker_max_seconds": 2}
    worker = component("worker", **settings, **SETTINGS)

    def pace() -> tuple[int, bool]:
        world.publish()
        return world.ledger.execute(
            "select openings, open_until is not null from outrider.destination_pace where destination_id = 'a'"
        ).fetchone()

    wait_until(lambda: pace()[0] >= 3, "the breaker opens, and probes fail")
    worker.kill()
    assert pace()[1]
    with lock:
        most[0] = now[0] = 0
    attempts = len(world.receiver.received)
    worker.start()
    opened_before = pace()[0]
    wait_until(lambda: pace()[0] >= opened_before + 2, "the new worker goes on probing")
    assert most[0] == 1
    assert len(world.receiver.received) - attempts <= 4
    waiting = world.ledger.execute(
        "select distinct waiting_reason from outrider.delivery where attempt = 0 and state = 'pending'"
    ).fetchall()
    assert {reason for (reason,) in waiting} <= {"breaker_open"}
    broken.clear()

    def finished() -> bool:
        pace()
        return world.states() == {"succeeded": 100}

    wait_until(finished, "the receiver is well, the breaker closes, and everything is delivered")
    assert pace() == (0, False)
