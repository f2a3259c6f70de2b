"""Admission is idempotent: the same identity again changes nothing, and other content under it is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.admission import AdmittedDelivery, IdentityConflict, admit, admit_sync
from pipeline.core.ids import delivery_identity, message_identity
from tests.support.ledger_rows import add_destination, connect, ledger, scalar, wait_until

EVENT: dict[str, Any] = {
    "event_id": "asset-42",
    "event_type": "media.processed",
    "payload": b'{"asset": 42}\x00\xff',
    "content_type": "application/json",
    "destinations": ["acme"],
    "deliver_at": None,
    "headers": {"x-tenant": "7"},
}
# PostgreSQL's text holds any Unicode but NUL.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=0, max_size=40)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        yield connection


def test_first_admission_writes_event_delivery_and_dispatch(connection: psycopg.Connection) -> None:
    admitted = admit_sync(connection, **EVENT)

    delivery_id = delivery_identity("asset-42", "acme")
    assert admitted == [AdmittedDelivery(delivery_id, "acme", created=True, state="enqueued")]
    outbox = connection.execute(
        "select message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, "
        "payload, reason from outrider.dispatch_outbox"
    ).fetchall()
    assert outbox == [
        (
            message_identity(delivery_id, 1),
            delivery_id,
            1,
            "acme",
            "asset-42",
            "media.processed",
            "application/json",
            {"x-tenant": "7"},
            EVENT["payload"],
            "admitted",
        )
    ]


async def test_the_asynchronous_twin_does_the_same(database: str, connection: psycopg.Connection) -> None:
    async with await psycopg.AsyncConnection.connect(database) as twin, twin.transaction():
        admitted = await admit(twin, **EVENT)
    assert [d.created for d in admitted] == [True]
    assert [d.created for d in admit_sync(connection, **EVENT)] == [False]


def test_same_identity_again_changes_nothing_and_says_so(connection: psycopg.Connection) -> None:
    first = admit_sync(connection, **EVENT)
    before = ledger(connection)

    again = admit_sync(connection, **EVENT)

    assert [(d.delivery_id, d.created) for d in again] == [(first[0].delivery_id, False)]
    assert ledger(connection) == before


def test_repeat_tells_the_state_of_today(connection: psycopg.Connection) -> None:
    admit_sync(connection, **EVENT)
    connection.execute("update outrider.delivery set state = 'dead', lost_after = null, settled_at = clock_timestamp()")
    assert [(d.created, d.state) for d in admit_sync(connection, **EVENT)] == [(False, "dead")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload", b'{"asset": 43}'),
        ("payload", b""),
        ("event_type", "media.Processed"),
        ("content_type", "application/cloudevents+json"),
        ("deliver_at", datetime.now(UTC) + timedelta(days=400)),
    ],
)
def test_other_content_under_the_same_identity_is_a_conflict(
    connection: psycopg.Connection, field: str, value: object
) -> None:
    admit_sync(connection, **EVENT)
    before = ledger(connection)

    with pytest.raises(IdentityConflict, match=field) as refused:
        admit_sync(connection, **{**EVENT, field: value})

    assert isinstance(refused.value.__cause__, psycopg.Error)
    assert refused.value.__cause__.sqlstate == "OU001"
    assert ledger(connection) == before


def test_headers_are_not_part_of_the_identity_and_the_first_ones_stand(connection: psycopg.Connection) -> None:
    admit_sync(connection, **EVENT)
    before = ledger(connection)
    assert [d.created for d in admit_sync(connection, **{**EVENT, "headers": {"x-tenant": "8"}})] == [False]
    assert ledger(connection) == before


def test_the_same_event_may_go_to_a_further_destination(connection: psycopg.Connection) -> None:
    add_destination(connection, "other")
    first = admit_sync(connection, **EVENT)
    both = admit_sync(connection, **{**EVENT, "destinations": ["other", "acme", "other"]})
    assert [(d.destination_id, d.created) for d in both] == [("acme", False), ("other", True)]
    assert both[0].delivery_id == first[0].delivery_id


def test_rolled_back_admission_leaves_no_trace(database: str, connection: psycopg.Connection) -> None:
    before = ledger(connection)
    with psycopg.connect(database) as caller:
        assert admit_sync(caller, **EVENT)[0].created
        caller.rollback()
    assert ledger(connection) == before
    assert admit_sync(connection, **EVENT)[0].created


def test_of_many_callers_at_once_exactly_one_creates(database: str, connection: psycopg.Connection) -> None:
    callers = 8
    barrier = threading.Barrier(callers)

    def call(_: int) -> bool:
        with psycopg.connect(database) as caller:
            barrier.wait(30)
            return admit_sync(caller, **EVENT)[0].created

    with ThreadPoolExecutor(callers) as threads:
        created = list(threads.map(call, range(callers)))

    assert sorted(created) == [False] * (callers - 1) + [True]
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 1


@pytest.mark.parametrize("first_commits", [True, False])
def test_second_caller_waits_for_the_fate_of_the_first(
    database: str, connection: psycopg.Connection, *, first_commits: bool
) -> None:
    with psycopg.connect(database) as first, psycopg.connect(database) as second, ThreadPoolExecutor(1) as thread:
        assert admit_sync(first, **EVENT)[0].created
        waiting = thread.submit(lambda: admit_sync(second, **EVENT)[0].created)
        pid = second.info.backend_pid
        wait_until(
            lambda: scalar(connection, "select wait_event_type from pg_stat_activity where pid = %s", pid) == "Lock",
            "the second caller waits",
        )
        if first_commits:
            first.commit()
        else:
            first.rollback()
        assert waiting.result(30) is not first_commits
        second.commit()
    assert scalar(connection, "select count(*) from outrider.delivery") == 1


def test_concurrent_callers_with_other_bytes_are_refused(database: str, connection: psycopg.Connection) -> None:
    with psycopg.connect(database) as first, psycopg.connect(database) as second, ThreadPoolExecutor(1) as thread:
        admit_sync(first, **EVENT)
        waiting = thread.submit(lambda: admit_sync(second, **{**EVENT, "payload": b"other"}))
        pid = second.info.backend_pid
        wait_until(
            lambda: scalar(connection, "select wait_event_type from pg_stat_activity where pid = %s", pid) == "Lock",
            "the second caller waits",
        )
        first.commit()
        with pytest.raises(IdentityConflict):
            waiting.result(30)


def test_deliver_at_in_the_future_waits_in_the_ledger_and_not_in_kafka(connection: psycopg.Connection) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    admitted = admit_sync(connection, **{**EVENT, "deliver_at": moment})
    assert [d.state for d in admitted] == ["pending"]
    row = connection.execute("select next_attempt_at, waiting_reason, dispatch_seq from outrider.delivery").fetchone()
    assert row == (moment, "scheduled", 0)
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == 0
    assert [d.created for d in admit_sync(connection, **{**EVENT, "deliver_at": moment})] == [False]


def test_deliver_at_in_the_past_is_due_at_once(connection: psycopg.Connection) -> None:
    moment = datetime.now(UTC) - timedelta(hours=1)
    assert [d.state for d in admit_sync(connection, **{**EVENT, "deliver_at": moment})] == ["enqueued"]


@pytest.fixture(scope="module")
def functions(module_database: str) -> Iterator[psycopg.Connection]:
    """For pure functions, which leave nothing behind."""
    with connect(module_database) as connection:
        yield connection


def identity(connection: psycopg.Connection, event_id: str, destination_id: str) -> str:
    return str(scalar(connection, "select outrider.delivery_identity(%s, %s)", event_id, destination_id))


@settings(max_examples=300, deadline=None)
@given(a=st.tuples(TEXT, TEXT), b=st.tuples(TEXT, TEXT))
def test_identities_of_any_two_pairs_differ_and_equal_those_of_the_core(
    functions: psycopg.Connection, a: tuple[str, str], b: tuple[str, str]
) -> None:
    assert identity(functions, *a) == delivery_identity(*a)
    assert identity(functions, *b) == delivery_identity(*b)
    assert (identity(functions, *a) == identity(functions, *b)) == (a == b)


@settings(max_examples=300, deadline=None)
@given(
    text=TEXT.filter(bool),
    cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    separator=st.sampled_from(":/,\x1f "),
)
def test_no_separator_makes_two_pairs_alike(
    functions: psycopg.Connection, text: str, cuts: tuple[int, int], separator: str
) -> None:
    """All ways of cutting one text in two give ids of their own, also where the text holds the separator."""
    joined = text.replace(text[0], separator)
    pairs = {(joined[:cut], joined[cut:]) for cut in cuts} | {
        (joined[:cut] + separator, joined[cut:].removeprefix(separator)) for cut in cuts
    }
    assert len({identity(functions, *pair) for pair in pairs}) == len(pairs)


@settings(max_examples=200, deadline=None)
@given(delivery_id=TEXT, dispatch_seq=st.integers(0, 2**31 - 1))
def test_message_identity_equals_that_of_the_core(
    functions: psycopg.Connection, delivery_id: str, dispatch_seq: int
) -> None:
    computed = scalar(functions, "select outrider.message_identity(%s, %s)", delivery_id, dispatch_seq)
    assert computed == message_identity(delivery_id, dispatch_seq)
