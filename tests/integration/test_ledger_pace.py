"""What the ledger lets start: rate, burst and concurrency over all workers, and what answers change about them.

Time is virtual: `later` moves everything that the ledger remembers of a destination into the past.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.sealing import Vault
from pipeline.ledger.deliveries import Claimed, ClaimRequest, Refused, claim, settle
from pipeline.ledger.destinations import load_destinations
from pipeline.ledger.pool import Pool, open_pool
from pipeline.reconcile.passes import PassLimits, run_pass
from tests.support.ledger_rows import add_delivery, add_destination, connect, delivery, scalar
from tests.support.settlements import BREAKER, retried, settlement
from tests.support.start_log import worst_excess

LIMITS = PassLimits(page_rows=500, pass_rows=10_000, window_seconds=2)
PAST = "2020-01-01T00:00:00Z"
MOMENTS = ("refilled_at", "slowed_at", "paused_until", "open_until", "probe_until")
_numbers = itertools.count()


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection, start_rate_per_second=100, burst=100, concurrency=100)
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, 2, "test") as pool:
        yield pool


def enqueued(connection: psycopg.Connection, count: int = 1, destination_id: str = "acme") -> list[str]:
    return [add_delivery(connection, f"e{next(_numbers)}", "enqueued", destination_id) for _ in range(count)]


def later(connection: psycopg.Connection, seconds: float) -> None:
    moved = ", ".join(f"{name} = {name} - make_interval(secs => %(seconds)s)" for name in MOMENTS)
    connection.execute(f"update outrider.destination_pace set {moved}".encode(), {"seconds": seconds})
    connection.execute(
        "update outrider.delivery set leased_at = leased_at - make_interval(secs => %(seconds)s), "
        "lease_until = lease_until - make_interval(secs => %(seconds)s) where state = 'leased'",
        {"seconds": seconds},
    )


async def ask(pool: Pool, ids: list[str], worker: str = "w1") -> list[Claimed | Refused]:
    return await claim(pool, worker, [ClaimRequest(i, 1, b"") for i in ids], lease_margin_seconds=15.0)


async def start(pool: Pool, connection: psycopg.Connection, count: int = 1) -> list[Claimed]:
    answers = await ask(pool, enqueued(connection, count))
    claimed = [answer for answer in answers if isinstance(answer, Claimed)]
    assert len(claimed) == count
    return claimed


async def refusal(pool: Pool, connection: psycopg.Connection) -> Refused:
    (answer,) = await ask(pool, enqueued(connection))
    assert isinstance(answer, Refused)
    return answer


async def works(pool: Pool, claimed: list[Claimed]) -> None:
    assert all(
        await settle(
            pool, "w1", [settlement(c.delivery_id, c.attempt, leased_at=c.leased_at) for c in claimed], BREAKER
        )
    )


async def fails(pool: Pool, claimed: list[Claimed], **changes: object) -> None:
    assert all(await settle(pool, "w1", [retried(c, **changes) for c in claimed], BREAKER))


async def share(pool: Pool) -> float:
    return (await load_destinations(pool, ["acme"], Vault()))["acme"].rate_share


async def test_a_worker_and_another_share_one_bucket(pool: Pool, connection: psycopg.Connection) -> None:
    connection.execute("update outrider.destination set burst = 3, start_rate_per_second = 0.005")
    ids = enqueued(connection, 8)
    first, second = await ask(pool, ids[:4], "w1"), await ask(pool, ids[4:], "w2")
    assert [isinstance(answer, Claimed) for answer in first + second] == [True] * 3 + [False] * 5
    assert [answer.verdict for answer in first[3:] + second if isinstance(answer, Refused)] == ["paced"] * 5
    # Their waits are their turns along the rate.
    waits = [answer.wait_seconds for answer in second if isinstance(answer, Refused)]
    assert waits == pytest.approx([200, 400, 600, 800], abs=100)
    later(connection, 210)
    assert len([a for a in await ask(pool, ids[3:]) if isinstance(a, Claimed)]) == 1


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("claim"), st.integers(1, 12)),
            st.tuples(st.just("wait"), st.floats(0.01, 3)),
            st.tuples(st.just("settle"), st.sampled_from(["works", "slow", "crash"])),
            st.tuples(st.just("limit"), st.tuples(st.floats(0.5, 20), st.integers(1, 10), st.integers(1, 8))),
        ),
        min_size=4,
        max_size=25,
    )
)
async def test_no_order_of_claims_answers_crashes_and_changes_starts_more_than_the_limits_allow(
    pool: Pool, connection: psycopg.Connection, steps: list[tuple[str, object]]
) -> None:
    name = add_destination(connection, f"d{next(_numbers)}", start_rate_per_second=5, burst=5, concurrency=4)
    rate, burst, concurrency = 5.0, 5, 4
    virtual, starts, flying = 0.0, list[float](), list[Claimed]()
    for step, argument in steps:
        match step, argument:
            case "claim", int(count):
                ids = enqueued(connection, count, name)
                for n, part in enumerate((ids[: count // 2], ids[count // 2 :])):
                    got = [a for a in await ask(pool, part, f"w{n}") if isinstance(a, Claimed)] if part else []
                    flying += got
                    starts += [c.leased_at.timestamp() + virtual for c in got]
                    assert len(flying) <= concurrency or not got
            case "wait", float(seconds):
                later(connection, seconds)
                virtual += seconds
            case "settle", "crash":
                # The worker is gone; its leases are found over, and what it had goes round again.
                connection.execute(
                    "update outrider.delivery set lease_until = now() where destination_id = %s and state = 'leased'",
                    (name,),
                )
                await run_pass(pool, LIMITS, woken_by="timer")
                flying = []
            case "settle", how:
                if flying and how == "works":
                    await works(pool, flying[:2])
                elif flying:
                    await fails(pool, flying[:2], slows=True, sign=None, status=429)
                flying = flying[2:]
            case "limit", (float(rate), int(burst), int(concurrency)):  # the names are bound anew
                connection.execute(
                    "update outrider.destination set start_rate_per_second = %s, burst = %s, concurrency = %s "
                    "where destination_id = %s",
                    (rate, burst, concurrency, name),
                )
                starts = []  # counted anew, as if the bucket had been full at the change
        if starts:
            assert worst_excess(starts, rate_per_second=rate, burst=burst) <= 1e-3


async def test_a_claim_does_not_wait_for_a_worker_that_hangs_in_one(
    database: str, pool: Pool, connection: psycopg.Connection
) -> None:
    add_destination(connection, "other")
    ours, theirs = enqueued(connection, 2, "other"), enqueued(connection, 2)
    with psycopg.connect(database) as hangs:
        hangs.execute("select from outrider.destination_pace where destination_id = 'acme' for no key update")
        answers = await ask(pool, [theirs[0], ours[0], theirs[1], ours[1]])
        assert [getattr(answer, "verdict", "claimed") for answer in answers] == ["busy", "claimed", "busy", "claimed"]
    assert all(isinstance(answer, Claimed) for answer in await ask(pool, theirs))


async def test_throttling_takes_the_rate_back_once_for_each_round_and_time_gives_it_again(
    pool: Pool, connection: psycopg.Connection
) -> None:
    assert await share(pool) == 1.0
    flying = await start(pool, connection, 20)
    slow = {"slows": True, "sign": None, "outcome": "throttled", "status": 429}
    await fails(pool, flying[:10], **slow)
    await fails(pool, flying[10:], **slow)  # requests from before the slowing say the same thing once more
    at_slowing = "select share_at_slowing from outrider.destination_pace where destination_id = 'acme'"
    assert scalar(connection, at_slowing) == 0.5
    await fails(pool, await start(pool, connection), **slow)
    halved = scalar(connection, at_slowing)
    # Of what it had grown to meanwhile.
    assert 0.25 <= halved < 0.5
    later(connection, 15)
    assert await share(pool) >= halved + 0.25
    later(connection, 60)
    assert await share(pool) == 1.0


async def test_the_rate_never_goes_down_to_nothing(pool: Pool, connection: psycopg.Connection) -> None:
    for _ in range(10):
        await fails(pool, await start(pool, connection), slows=True, sign=None)
        later(connection, 0.6)
    assert 0.02 <= scalar(connection, "select share_at_slowing from outrider.destination_pace") < 0.2
    connection.execute("update outrider.destination_pace set tokens = 0, refilled_at = clock_timestamp()")
    connection.execute("update outrider.destination set start_rate_per_second = 0.01")
    refused = await refusal(pool, connection)
    # The share of one in a hundred seconds.
    assert refused.verdict == "paced"
    assert 200 < refused.wait_seconds <= 5_000


async def test_retry_after_pauses_the_whole_lane_and_the_longest_counts(
    pool: Pool, connection: psycopg.Connection
) -> None:
    first, second, third = await start(pool, connection, 3)
    await fails(pool, [first], pause_seconds=3_000.0, sign=None)
    await fails(pool, [second], pause_seconds=1_000.0, sign=None)
    refused = await refusal(pool, connection)
    assert (refused.verdict, refused.wait_seconds) == ("throttled", pytest.approx(3_000, abs=200))
    # A success meanwhile takes nothing back of what it asked for.
    await works(pool, [third])
    assert (await refusal(pool, connection)).verdict == "throttled"
    add_delivery(connection, "due", "pending", next_attempt_at=PAST)
    connection.execute(
        "update outrider.delivery set state = 'dead', lost_after = null, settled_at = now() where state = 'enqueued'"
    )
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0
    later(connection, 3_001)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.due >= 1
    assert len(await start(pool, connection)) == 1


async def test_failures_in_a_row_open_the_breaker_and_one_delivery_probes(
    pool: Pool, connection: psycopg.Connection
) -> None:
    flying = await start(pool, connection, BREAKER.failures + 1)
    await fails(pool, flying[:4])
    await fails(pool, flying[4 : BREAKER.failures - 1])
    assert (await load_destinations(pool, ["acme"], Vault()))["acme"].hold is None
    await fails(pool, flying[BREAKER.failures - 1 :])
    refused = await refusal(pool, connection)
    assert (refused.verdict, refused.wait_seconds) == ("open", pytest.approx(100, abs=50))

    later(connection, 101)
    probe, *others = await ask(pool, enqueued(connection, 5))
    assert isinstance(probe, Claimed)
    assert [other.verdict for other in others if isinstance(other, Refused)] == ["open"] * 4
    assert (await refusal(pool, connection)).verdict == "open"
    await fails(pool, [probe])
    # It stays open for twice as long, and for longer each time, up to the bound.
    for seconds in (200, 400, 800, 1_600, 3_200, 6_000, 6_000):
        refused = await refusal(pool, connection)
        assert (refused.verdict, refused.wait_seconds) == ("open", pytest.approx(seconds, abs=50))
        later(connection, seconds + 1)
        await fails(pool, await start(pool, connection))
    later(connection, 6_001)
    await works(pool, await start(pool, connection))
    assert len(await start(pool, connection, 20)) == 20


async def test_answers_to_requests_from_before_the_opening_say_nothing_new(
    pool: Pool, connection: psycopg.Connection
) -> None:
    flying = await start(pool, connection, BREAKER.failures + 20)
    await fails(pool, flying[: BREAKER.failures])
    await fails(pool, flying[BREAKER.failures :])
    assert scalar(connection, "select openings from outrider.destination_pace") == 1
    later(connection, 101)
    assert len(await start(pool, connection)) == 1


async def test_a_probe_whose_worker_died_is_followed_by_another(pool: Pool, connection: psycopg.Connection) -> None:
    await fails(pool, await start(pool, connection, BREAKER.failures))
    later(connection, 101)
    await start(pool, connection)
    assert (await refusal(pool, connection)).verdict == "open"
    later(connection, 20 + 15 + 1)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.lease_expired == 1
    assert len(await start(pool, connection)) == 1


async def test_a_probe_that_says_nothing_lets_the_next_go(pool: Pool, connection: psycopg.Connection) -> None:
    await fails(pool, await start(pool, connection, BREAKER.failures))
    later(connection, 101)
    await fails(pool, await start(pool, connection), sign=None)
    assert len(await start(pool, connection)) == 1


async def test_an_answer_between_failures_keeps_it_closed(pool: Pool, connection: psycopg.Connection) -> None:
    for _ in range(4):
        await fails(pool, await start(pool, connection, BREAKER.failures - 1))
        await works(pool, await start(pool, connection))
    assert len(await start(pool, connection)) == 1


async def test_while_it_is_open_the_reconciler_hands_out_nothing_and_then_one(
    pool: Pool, connection: psycopg.Connection
) -> None:
    failing = await start(pool, connection, BREAKER.failures)
    await fails(pool, failing, delay_seconds=0.0)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0
    later(connection, 101)
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.due == 1
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0


async def test_a_paused_destination_starts_nothing_and_is_handed_nothing(
    pool: Pool, connection: psycopg.Connection
) -> None:
    add_delivery(connection, "due", "pending", next_attempt_at=PAST)
    connection.execute("update outrider.destination set paused_at = now()")
    assert (await refusal(pool, connection)).verdict == "paused"
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0
    connection.execute("update outrider.destination set paused_at = null")
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.due == 1


async def test_what_waits_for_the_rate_alone_is_taken_early_where_there_is_room(
    pool: Pool, connection: psycopg.Connection
) -> None:
    connection.execute("update outrider.destination set start_rate_per_second = 1, burst = 5")
    connection.execute("update outrider.destination_pace set tokens = 5, refilled_at = clock_timestamp()")
    line = [add_delivery(connection, f"line{n}", "pending", waiting_reason="rate", attempt=0) for n in range(10)]
    for n, delivery_id in enumerate(line):
        connection.execute(
            "update outrider.delivery set next_attempt_at = now() + make_interval(secs => 100 + %s) where delivery_id = %s",
            (n, delivery_id),
        )
    retry = add_delivery(connection, "backoff", "pending", waiting_reason="retry")
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.due == 7
    states = [delivery(connection, delivery_id)["state"] for delivery_id in line]
    assert states == ["enqueued"] * 7 + ["pending"] * 3
    assert delivery(connection, retry)["state"] == "pending"
    reasons = connection.execute(
        "select distinct reason from outrider.dispatch_outbox where dispatch_seq = 2"
    ).fetchall()
    assert reasons == [("turn",)]
    # More than there is room for keeps its time.
    assert (await run_pass(pool, LIMITS, woken_by="timer")).moved.total == 0
