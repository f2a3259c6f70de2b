"""Invariant 12: whatever the receiver answers, a worker's time, memory and sockets stay bounded."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.receivers.catalogue import BEHAVIOURS
from tests.receivers.hostile import WELL_BEHAVED
from tests.support.delivery_world import opened, wait_until

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3
EVENTS_OF_A_ROUND = 2
MIB = 1024 * 1024


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


@pytest.fixture
def hostile():
    """URLs and CA of the hostile receiver, which is a process of its own and ends with its stdin."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.receivers"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def sockets(pid: int) -> int:
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue  # closed meanwhile
    return count


def test_every_kind_of_abuse_is_bounded_classified_and_hurts_nobody_else(world, component, hostile):
    for name, url in hostile["urls"].items():
        world.add_destination(
            name,
            url=url,
            allowed_networks=["127.0.0.0/8", "::1/128"],
            timeout_seconds=20 if name == WELL_BEHAVED else 1,
            concurrency=16 if name == WELL_BEHAVED else 1,
            retry_max_attempts=1,
        )
        world.ledger.execute(
            "insert into outrider.destination_credential (destination_id, ca) values (%s, %s)", (name, hostile["ca"])
        )
    # What is at stake here is each request; a breaker would spare the worker most of them.
    worker = component("worker", worker_id="w1", worker_breaker_failures=10_000)

    def settled() -> bool:
        world.redispatch_due()  # what found no place in its lane at once
        return world.states().keys() <= {"succeeded", "dead"}

    names, total = list(hostile["urls"]), 0
    for number in range(20):
        total += len(world.admit(f"healthy-{number}", WELL_BEHAVED))
    total += len(world.admit("first", *names))
    world.publish()
    wait_until(settled, "everything settled")

    attempts = {
        (row["destination_id"], row["event_id"]): row
        for row in world._row("select * from outrider.delivery_attempt order by attempt_id")
    }
    for name, behaviour in BEHAVIOURS.items():
        attempt = attempts[name, "first"]
        assert attempt["outcome"] in behaviour.outcomes, attempt
        if len(behaviour.outcomes) == 1:
            assert attempt["ambiguous"] is behaviour.is_ambiguous, attempt
        assert len(attempt["response_excerpt"] or b"") <= 4096
    assert {a["outcome"] for (name, _), a in attempts.items() if name == WELL_BEHAVED} == {"success"}
    assert len(attempts) == total
    gone = {row["destination_id"] for row in world._row("select * from outrider.destination where not enabled")}
    assert gone == {"is_gone"}

    names.remove("is_gone")
    before_bytes, before_sockets = resident_bytes(worker.pid), sockets(worker.pid)
    for number in range(ROUNDS):
        for event in range(EVENTS_OF_A_ROUND):
            total += len(world.admit(f"round-{number}-{event}", *names))
        world.publish()
        wait_until(settled, f"round {number} settled")
    assert world.ledger.execute("select count(*) from outrider.delivery_attempt").fetchone() == (total,)
    assert resident_bytes(worker.pid) - before_bytes < 32 * MIB
    # Connections of the ledger and of Kafka come and go by a few; one leak for each attempt would be hundreds.
    wait_until(lambda: sockets(worker.pid) <= before_sockets + 8, "the sockets of the attempts are closed")
