"""Invariant 3: in every non-terminal state there is a bounded time after which the reconciler finds the row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pipeline.core.lifecycle import State
from pipeline.ledger.deliveries import Claimed, ClaimRequest, Parking, Settlement, claim, park, settle
from pipeline.ledger.pool import Pool, open_pool
from pipeline.reconcile.passes import PassLimits, run_pass
from tests.fixtures.components import StartComponent
from tests.support.delivery_world import Received, Reply, World, opened, wait_until
from tests.support.ledger_rows import STATES, add_delivery, add_destination, connect, delivery
from tests.support.settlements import BREAKER, retried

PAST = "2020-01-01T00:00:00Z"
LIMITS = PassLimits(page_rows=100, pass_rows=1_000, window_seconds=10)
WAITING = [str(state) for state in State if not state.is_terminal]
TIME_OF_STATE = {"pending": "next_attempt_at", "enqueued": "lost_after", "leased": "lease_until"}
MARGIN_SECONDS = 5.0
TIMEOUT_SECONDS = 2.0
TRANSPORT_SECONDS = 100.0


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection, timeout_seconds=TIMEOUT_SECONDS)
        connection.execute("update outrider.ledger_setting set transport_timeout_seconds = %s", (TRANSPORT_SECONDS,))
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, 2, "test") as pool:
        yield pool


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def test_the_states_that_wait_are_those_with_a_time() -> None:
    assert set(WAITING) == set(TIME_OF_STATE)


@pytest.mark.parametrize("state", TIME_OF_STATE)
def test_no_row_can_wait_without_its_time(rolled_back: psycopg.Connection, state: str) -> None:
    add_destination(rolled_back)
    add_delivery(rolled_back, "e", state)
    with pytest.raises(psycopg.errors.CheckViolation), rolled_back.transaction():
        rolled_back.execute(f"update outrider.delivery set {TIME_OF_STATE[state]} = null".encode())


@pytest.mark.parametrize(
    ("state", "column"),
    [
        (state, column)
        for state in STATES
        for column in (*TIME_OF_STATE.values(), "settled_at")
        if column != TIME_OF_STATE.get(state, "settled_at")
    ],
)
def test_no_row_carries_the_time_of_another_state(rolled_back: psycopg.Connection, state: str, column: str) -> None:
    add_destination(rolled_back)
    add_delivery(rolled_back, "e", state)
    with pytest.raises(psycopg.errors.CheckViolation), rolled_back.transaction():
        rolled_back.execute(f"update outrider.delivery set {column} = now()".encode())


@pytest.mark.parametrize("state", STATES)
def test_a_row_changes_state_only_with_its_times(rolled_back: psycopg.Connection, state: str) -> None:
    add_destination(rolled_back)
    add_delivery(rolled_back, "e", state)
    for other in STATES:
        if other == state or {other, state} <= {"succeeded", "dead"}:
            continue
        with pytest.raises(psycopg.errors.CheckViolation), rolled_back.transaction():
            rolled_back.execute("update outrider.delivery set state = %s", (other,))


def seconds_from_now(connection: psycopg.Connection, moment: datetime) -> float:
    row = connection.execute(
        "select extract(epoch from %s - clock_timestamp())::double precision", (moment,)
    ).fetchone()
    assert row is not None
    return float(row[0])


async def claim_it(pool: Pool, delivery_id: str) -> Claimed:
    request = ClaimRequest(delivery_id, 1, b"")
    (answer,) = await claim(pool, "w1", [request], lease_margin_seconds=MARGIN_SECONDS)
    assert isinstance(answer, Claimed)
    return answer


def to_be_tried_again(claimed: Claimed, delay_seconds: float) -> Settlement:
    return retried(claimed, delay_seconds=delay_seconds, waiting_reason="retry")


async def test_every_transition_into_a_waiting_state_sets_a_time_within_its_bound(
    pool: Pool, connection: psycopg.Connection
) -> None:
    def bound(delivery_id: str, state: str) -> float:
        row = delivery(connection, delivery_id)
        assert row["state"] == state
        return seconds_from_now(connection, row[TIME_OF_STATE[state]])

    def admitted(event_id: str) -> str:
        delivery_id = add_delivery(connection, event_id, "enqueued")
        moment = datetime.now(UTC) + timedelta(seconds=TRANSPORT_SECONDS)
        connection.execute("update outrider.delivery set lost_after = %s where delivery_id = %s", (moment, delivery_id))
        return delivery_id

    row = connection.execute(
        "select delivery_id from outrider.admit('now', 't', 'x'::bytea, destinations => array['acme'])"
    ).fetchone()
    assert row is not None
    assert 0 < bound(row[0], "enqueued") <= TRANSPORT_SECONDS
    row = connection.execute(
        "select delivery_id from outrider.admit('later', 't', 'x'::bytea, destinations => array['acme'], "
        "deliver_at => now() + interval '50 s')"
    ).fetchone()
    assert row is not None
    assert 0 < bound(row[0], "pending") <= 50

    claimed = await claim_it(pool, admitted("claimed"))
    assert 0 < bound(claimed.delivery_id, "leased") <= TIMEOUT_SECONDS + MARGIN_SECONDS
    await settle(pool, "w1", [to_be_tried_again(claimed, 9.0)], BREAKER)
    assert 0 < bound(claimed.delivery_id, "pending") <= 9

    connection.execute(
        "update outrider.delivery set next_attempt_at = %s where delivery_id = %s", (PAST, claimed.delivery_id)
    )
    await run_pass(pool, LIMITS, woken_by="timer")
    assert 0 < bound(claimed.delivery_id, "enqueued") <= TRANSPORT_SECONDS

    parked = admitted("parked")
    await park(pool, [Parking(parked, 1, "rate", 7.0)])
    assert 0 < bound(parked, "pending") <= 7
    row = connection.execute(
        "select delivery_id from outrider.admit('held back', 't', 'x'::bytea, destinations => array['acme'])"
    ).fetchone()
    assert row is not None
    assert bound(row[0], "pending") <= TIMEOUT_SECONDS


async def test_patience_with_the_transport_is_bounded_however_often_it_loses(
    pool: Pool, connection: psycopg.Connection
) -> None:
    delivery_id = add_delivery(connection, "e", "enqueued", dispatches_lost=1_000, lost_after=PAST)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.lost == 1
    assert seconds_from_now(connection, delivery(connection, delivery_id)["lost_after"]) <= TRANSPORT_SECONDS * 2**12


@pytest.mark.parametrize("state", TIME_OF_STATE)
async def test_the_reconciler_finds_each_when_its_time_is_over(
    pool: Pool, connection: psycopg.Connection, state: str
) -> None:
    delivery_id = add_delivery(connection, "e", state)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0
    connection.execute(f"update outrider.delivery set {TIME_OF_STATE[state]} = clock_timestamp()".encode())
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 1
    row = delivery(connection, delivery_id)
    assert (row["state"], row["dispatch_seq"]) == ("enqueued", 2)


def test_what_a_killed_worker_held_is_delivered_by_another(world: World, component: StartComponent) -> None:
    requests: list[Received] = []
    first_worker: list[Any] = []

    def reply(received: Received) -> Reply:
        requests.append(received)
        if len(requests) == 1:
            # In flight under a lease: the moment to die.
            first_worker[0].kill()
        return Reply(200)

    world.receiver.reply = reply
    world.add_destination("acme", timeout_seconds=1)
    component("connector")
    component("reconciler", reconciler_interval_seconds=0.1)
    first_worker.append(component("worker", worker_lease_margin_seconds=0.5))
    (delivery_id,) = world.admit("e", "acme")
    wait_until(lambda: len(requests) == 1 and not first_worker[0].is_running, "the worker dies in flight")
    component("worker", worker_lease_margin_seconds=0.5)
    wait_until(lambda: world.states() == {"succeeded": 1}, "another worker delivers it")
    assert {request.delivery_id for request in requests} == {delivery_id}
    assert [attempt["result"] for attempt in world.attempts(delivery_id)] == ["lease_expired", "succeeded"]


def outbox(world: World) -> list[tuple[Any, ...]]:
    return world.ledger.execute(
        "select outbox_id, message_id::text, delivery_id, dispatch_seq, destination_id, payload, reason "
        "from outrider.dispatch_outbox order by outbox_id"
    ).fetchall()


def test_what_never_reached_a_worker_is_dispatched_again(world: World, component: StartComponent) -> None:
    world.add_destination("acme")
    world.ledger.execute("update outrider.ledger_setting set transport_timeout_seconds = 0.5")
    (delivery_id,) = world.admit("e", "acme")
    # The first dispatch is never published, as if Kafka had lost it or the group had skipped it.
    component("reconciler", reconciler_interval_seconds=0.1)
    wait_until(lambda: world.delivery(delivery_id)["dispatch_seq"] >= 2, "the reconciler finds it")
    component("worker")

    def arrives() -> bool:
        world.publish_rows([row for row in outbox(world) if row[3] == world.delivery(delivery_id)["dispatch_seq"]])
        return world.states() == {"succeeded": 1}

    wait_until(arrives, "it is delivered under a later dispatch")
    assert {request.delivery_id for request in world.receiver.received} == {delivery_id}
    assert world.delivery(delivery_id)["attempt"] == 1
