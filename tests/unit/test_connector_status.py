"""Readiness tells whether rows flow, and if not, why."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from connectors.status import BEHIND_SECONDS, STALL_SECONDS, ConnectorStatus, Outlook, State
from connectors.stop import StopSignal


def test_only_a_streaming_connector_is_ready() -> None:
    states: tuple[State, ...] = ("starting", "waiting for slot", "catching up", "reconnecting", "stopped")
    for state in states:
        status = ConnectorStatus()
        status.enter(state, "a reason")
        assert status.ready(100.0) == (False, f"{state}: a reason")
    status.enter("streaming")
    assert status.ready(100.0) == (True, "streaming")


@pytest.mark.parametrize(("open_for", "is_ready"), [(0.0, True), (STALL_SECONDS, True), (STALL_SECONDS + 0.1, False)])
def test_a_transaction_that_stays_open_is_a_stall(open_for: float, is_ready: bool) -> None:
    status = ConnectorStatus()
    status.enter("streaming")
    status.busy_since = 50.0
    ready, why = status.ready(50.0 + open_for)
    assert ready is is_ready
    assert ready or why.startswith("stalled: Kafka has not committed for 10")


def test_a_commit_that_fails_again_and_again_does_not_look_ready_between() -> None:
    status = ConnectorStatus()
    status.failure = "Kafka did not commit"
    status.enter("streaming")
    assert status.ready(50.0) == (True, "streaming")
    status.busy_since = 50.0
    assert status.ready(50.0) == (False, "trying again: Kafka did not commit")
    status.failure = ""
    assert status.ready(50.0) == (True, "streaming")


def test_a_silent_database_is_a_stall_before_the_session_gives_up() -> None:
    status = ConnectorStatus()
    status.enter("streaming")
    status.silent_since = 50.0
    assert status.ready(59.0) == (True, "streaming")
    assert status.ready(61.0) == (False, "stalled: PostgreSQL has been silent for 11 s")
    status.enter("streaming")
    assert status.ready(61.0) == (True, "streaming")


def test_a_new_state_forgets_the_transaction_of_the_last() -> None:
    status = ConnectorStatus()
    status.busy_since = 50.0
    status.enter("streaming")
    assert status.ready(1_000.0) == (True, "streaming")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"postgres_answered_at": 89.0}, "stalled: PostgreSQL has not answered for 11 s"),
        ({"kafka_answered_at": 89.0}, "stalled: Kafka has not answered for 11 s"),
        ({"behind_since": 99.0 - BEHIND_SECONDS}, "stalled: nothing is published of new WAL for 26 s"),
    ],
)
def test_what_the_watch_sees_is_a_stall(changes: dict[str, float], reason: str) -> None:
    status = ConnectorStatus()
    status.enter("streaming")
    status.outlook = replace(Outlook(postgres_answered_at=95.0, kafka_answered_at=95.0, behind_since=90.0), **changes)  # type: ignore[arg-type]
    assert status.ready(100.0) == (False, reason)


def test_a_slot_in_danger_is_told_whether_rows_flow_or_not() -> None:
    status = ConnectorStatus()
    status.enter("streaming")
    status.outlook = Outlook(postgres_answered_at=95.0, kafka_answered_at=95.0, warning="the slot's WAL is unreserved")
    assert status.ready(100.0) == (True, "streaming; the slot's WAL is unreserved")
    status.enter("paused", "by ada")
    assert status.ready(100.0) == (False, "paused: by ada; the slot's WAL is unreserved")


def test_a_stop_signal_wakes_who_waits_for_it() -> None:
    stop = StopSignal()
    assert not stop.wait(0)
    assert stop.seconds_since() == 0.0
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(stop.wait(3_600)))
    waiter.start()
    stop.set()
    waiter.join(30)
    assert woken == [True]
    for _ in range(10_000):
        stop.set()  # more than its socket can hold
    assert stop.wait(3_600)
    stop.close()
