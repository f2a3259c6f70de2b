"""Invariant 1: admission is idempotent; identity never changes by retry, replay, rotation, or another clock."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from pipeline.admission import admit_sync
from pipeline.core.ids import delivery_identity, message_identity
from pipeline.core.sealing import Vault
from pipeline.core.signing import verify
from pipeline.ledger.operator import Act, rotate_secret
from pipeline.ledger.operator_deliveries import retry
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.passes import PassLimits, run_pass
from tests.fixtures.components import StartComponent
from tests.support.delivery_world import Received, Reply, World, opened, wait_until
from tests.support.ledger_rows import SECRET, STATES, add_delivery, add_destination, connect, delivery, ledger

ACT = Act("ada", "test")
LIMITS = PassLimits(page_rows=100, pass_rows=1_000, window_seconds=10)
NEW_SECRET = SECRET.replace("A", "B", 1)


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


@pytest.mark.parametrize("state", STATES)
def test_in_every_state_of_the_delivery_the_same_admission_changes_nothing(
    rolled_back: psycopg.Connection, state: str
) -> None:
    add_destination(rolled_back)
    delivery_id = add_delivery(rolled_back, "e", state)
    before = ledger(rolled_back)
    for _ in range(3):
        (again,) = admit_sync(
            rolled_back, event_id="e", event_type="test.event", payload=b"body", destinations=["acme"]
        )
        assert (again.delivery_id, again.created, again.state) == (delivery_id, False, state)
    assert ledger(rolled_back) == before


def test_identity_and_bytes_outlive_failures_rotation_a_kill_and_a_replay(
    world: World, component: StartComponent
) -> None:
    payload = b'{"asset": 42}\x00\xff'
    first_secret = world.add_destination("acme", retry_first_delay_seconds=0.05, retry_factor=1, timeout_seconds=5)
    replies = [Reply(500), Reply(None), Reply(429, {"retry-after": "0"}), Reply(200), Reply(200)]
    requests: list[Received] = []

    def reply(received: Received) -> Reply:
        requests.append(received)
        return replies[min(len(requests), len(replies)) - 1]

    world.receiver.reply = reply
    world.ledger.execute("update outrider.ledger_setting set transport_timeout_seconds = 5")
    (delivery_id,) = world.admit("asset-42", "acme", payload=payload)
    assert delivery_id == delivery_identity("asset-42", "acme")

    component("connector")
    component("reconciler", reconciler_interval_seconds=0.1)
    worker = component("worker")
    wait_until(lambda: len(requests) >= 1, "the first attempt")
    worker.kill()
    made = rotate_secret(world.ledger, "acme", NEW_SECRET, ACT, overlap_seconds=3_600, vault=Vault.of(None))
    component("worker")
    wait_until(lambda: world.states() == {"succeeded": 1}, "it succeeds in the end")
    succeeded_after = len(requests)

    assert retry(world.ledger, [delivery_id], ACT, force=True) == [delivery_id]
    wait_until(lambda: len(requests) > succeeded_after, "the replay arrives")
    wait_until(lambda: world.states() == {"succeeded": 1}, "it is settled again")

    assert {(r.headers["webhook-id"], r.headers["idempotency-key"], r.body) for r in requests} == {
        (delivery_id, delivery_id, payload)
    }
    for request in requests:
        timestamp, signature = request.headers["webhook-timestamp"], request.headers["webhook-signature"]
        assert verify([first_secret], delivery_id, timestamp, signature, payload, now=float(timestamp))
    last = requests[-1].headers
    assert verify(
        [made.secret],
        delivery_id,
        last["webhook-timestamp"],
        last["webhook-signature"],
        payload,
        now=float(last["webhook-timestamp"]),
    )
    # Attempts go on counting, so that no two have one number.
    numbers = [int(r.headers["outrider-attempt"]) for r in requests]
    assert numbers == sorted(set(numbers))
    # Transport identity is another for each dispatch, and derived from the one that never changes.
    dispatches: list[tuple[int, UUID]] = world.ledger.execute(
        "select dispatch_seq, message_id from outrider.dispatch_outbox order by 1"
    ).fetchall()
    assert dispatches == [(n + 1, message_identity(delivery_id, n + 1)) for n in range(len(dispatches))]
    assert len(dispatches) >= 3


@pytest.mark.parametrize("woken_by", ["timer", "notify", "cron", "http", "operator"])
async def test_whatever_clock_woke_the_reconciler_is_no_part_of_an_identity(database: str, woken_by: str) -> None:
    with connect(database) as connection:
        add_destination(connection)
        delivery_id = add_delivery(connection, "e", "pending", next_attempt_at="2020-01-01T00:00:00Z")
        async with open_pool(database, 1, "test") as pool:
            assert (await run_pass(pool, LIMITS, woken_by=woken_by)).moved.due == 1
        assert delivery(connection, delivery_id)["dispatch_seq"] == 2
        rows = connection.execute("select message_id from outrider.dispatch_outbox where dispatch_seq = 2").fetchall()
    assert delivery_id == delivery_identity("e", "acme")
    assert rows == [(message_identity(delivery_id, 2),)]
