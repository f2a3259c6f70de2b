"""What a run may dispatch: its share of what a destination can start, live traffic first, nothing while it is held."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.operator import Act
from pipeline.ledger.replay import Choice
from pipeline.ledger.runs import open_run
from tests.support.ledger_rows import add_delivery, add_destination

CHOICE = Choice(mode="failed")
SHARE = 0.5
ROOM = 15
"""Half of a burst of ten and of what 4 a second start in five seconds."""


@pytest.fixture
def ledger(rolled_back: psycopg.Connection) -> psycopg.Connection:
    add_destination(rolled_back, start_rate_per_second=4, burst=10)
    return rolled_back


def selected(ledger: psycopg.Connection, delivery_ids: list[str]) -> UUID:
    run_id = open_run(ledger, "replay", Act("kim", "why"), parameters={}, before=None, after=None)
    ledger_replay.begin_replay(ledger, run_id, "dead", phase="select", stretches=(), delivery_ids=None)
    ledger_replay.select_items(ledger, run_id, delivery_ids, CHOICE, is_listed=False)
    return run_id


def page(ledger: psycopg.Connection, run_id: UUID, rows: int = 100) -> dict[str, int]:
    return ledger_replay.dispatch_items(ledger, run_id, CHOICE, page_rows=rows, share=SHARE, window_seconds=5.0)


def dead(ledger: psycopg.Connection, count: int, destination_id: str = "acme") -> list[str]:
    return [add_delivery(ledger, f"{destination_id}-dead-{n}", "dead", destination_id) for n in range(count)]


def test_a_run_takes_its_share_and_waits_for_the_rest(ledger: psycopg.Connection) -> None:
    ids = dead(ledger, ROOM + 5)
    run_id = selected(ledger, ids)
    assert page(ledger, run_id, rows=3) == {"replayed": 3}
    assert page(ledger, run_id) == {"replayed": ROOM - 3}
    assert page(ledger, run_id) == {}
    moved = ledger.execute(
        "select delivery_id from outrider.delivery where state = 'enqueued' and dispatch_seq = 2"
    ).fetchall()
    assert {row[0] for row in moved} == set(ids[:ROOM])  # in the order in which they were selected
    # They were handed out a while ago, or claimed.
    ledger.execute("update outrider.delivery set lost_after = lost_after - interval '6 s' where state = 'enqueued'")
    assert page(ledger, run_id) == {"replayed": 5}


@pytest.mark.parametrize("live", ["due", "in line"])
def test_live_traffic_that_waits_goes_first(ledger: psycopg.Connection, live: str) -> None:
    run_id = selected(ledger, dead(ledger, 5))
    moment = "now() - interval '1 s'" if live == "due" else "now() + interval '1 minute'"
    for number in range(ROOM):
        add_delivery(ledger, f"live-{number}", "pending")
    ledger.execute(
        f"update outrider.delivery set next_attempt_at = {moment}, waiting_reason = 'rate' where state = 'pending'".encode()
    )
    assert page(ledger, run_id) == {}
    ledger.execute(
        "update outrider.delivery set next_attempt_at = now() + interval '1 hour', waiting_reason = 'retry' "
        "where state = 'pending'"
    )
    assert page(ledger, run_id) == {"replayed": 5}


@pytest.mark.parametrize(
    ("held", "hold"),
    [
        ("update outrider.destination set paused_at = now()", "paused"),
        ("update outrider.destination_pace set paused_until = now() + interval '1 hour'", "throttled"),
        ("update outrider.destination_pace set open_until = now() + interval '1 hour'", "breaker_open"),
    ],
)
def test_a_held_destination_is_waited_for_and_the_others_go_on(
    ledger: psycopg.Connection, held: str, hold: str
) -> None:
    add_destination(ledger, "beta")
    run_id = selected(ledger, [*dead(ledger, 2), *dead(ledger, 3, "beta")])
    ledger.execute(f"{held} where destination_id = 'acme'".encode())
    assert page(ledger, run_id) == {"replayed": 3}
    assert page(ledger, run_id) == {}
    assert ledger_replay.waits_for(ledger, run_id, 10) == [("acme", hold)]
    assert ledger_replay.skip_disabled(ledger, run_id) == 0


def test_what_has_gone_on_since_it_was_selected_is_left_alone(ledger: psycopg.Connection) -> None:
    ids = dead(ledger, 3)
    run_id = selected(ledger, ids)
    # An operator has retried the first, and it died again; another is being sent at this moment.
    ledger.execute("update outrider.delivery set dispatch_seq = 2 where delivery_id = %s", (ids[0],))
    ledger.execute(
        "update outrider.delivery set state = 'leased', settled_at = null, leased_at = now(), lease_owner = 'w', "
        "lease_until = now() + interval '1 minute' where delivery_id = %s",
        (ids[1],),
    )
    assert page(ledger, run_id) == {"gone_on": 1, "in_flight": 1, "replayed": 1}
    assert ledger_replay.counts_of_items(ledger, run_id) == {"gone_on": 1, "in_flight": 1, "replayed": 1}
