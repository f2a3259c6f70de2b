"""Rows that a restore of the database has lost come back from the topics, as they were or due, and never twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.core.ids import delivery_identity, message_identity
from tests.support.delivery_world import World, opened
from tests.support.ledger_rows import scalar
from tests.support.program import Outrider
from tests.support.replay_world import publish_attempts, publish_whole, ran, report, status

PAYLOAD = b'{"b": 1,  "a": "\xff\x00"}'


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        yield world


def plan(outrider: Outrider, path: Path) -> Any:
    done = outrider("replay", "rebuild", "--out", str(path), "--rate", "100000", "--json")
    assert done.exit_code == 0, done.stderr
    return done.json


def test_lost_rows_come_back_and_known_ones_stay(
    outrider: Outrider, world: World, bootstrap_servers: str, tmp_path: Path
) -> None:
    names = ("due", "succeeded", "dead", "late", "retried", "known", "behind", "restored")
    ids = {
        name: world.admit(name, "acme", payload=PAYLOAD, content_type="text/plain", headers={"x": "1"})[0]
        for name in names
    }
    world.ledger.execute("update outrider.delivery set state = 'pending', next_attempt_at = now(), lost_after = null")
    world.enqueue_pending(world.ledger)  # each has a second message
    publish_whole(world, bootstrap_servers)
    publish_attempts(
        world,
        bootstrap_servers,
        [
            (ids["succeeded"], 1, "retry", "server_error"),
            (ids["succeeded"], 2, "succeeded", "success"),
            (ids["dead"], 1, "dead", "rejected"),
            (ids["late"], 1, "late", "success"),
            (ids["retried"], 3, "retry", "server_error"),
            (ids["restored"], 1, "succeeded", "success"),
        ],
    )
    world.ledger.execute(
        "select nextval('outrider.delivery_attempt_attempt_id_seq'), nextval('outrider.delivery_attempt_attempt_id_seq')"
    )
    admitted_events = events(world)
    # The database is restored to a time when five were not there yet, and two stood at their first dispatch.
    lost = [ids[name] for name in ("due", "succeeded", "dead", "late", "retried")]
    world.ledger.execute("delete from outrider.delivery where delivery_id = any (%s)", (lost,))
    world.ledger.execute("delete from outrider.event where event_id not in (select event_id from outrider.delivery)")
    world.ledger.execute(
        "update outrider.delivery set dispatch_seq = 1 where delivery_id = any (%s)",
        ([ids["behind"], ids["restored"]],),
    )

    made = plan(outrider, tmp_path / "plan")
    verdicts = {(c["verdict"], c["state"]): c["deliveries"] for c in made["counts"]}
    assert verdicts == {
        ("rebuild_due", "missing"): 3,
        ("rebuild_succeeded", "missing"): 1,
        ("rebuild_dead", "missing"): 1,
        ("advance", "enqueued"): 2,
    }
    assert made["attempt_ids"] == {"given": 2, "proven": 5}
    assert world.states() == {"enqueued": 3}

    done = ran(outrider, tmp_path / "plan")
    assert (done["rebuilt"], done["advanced"], done["skipped"]) == (5, 2, 0)
    raised = [{"sequence": "outrider.delivery_attempt.attempt_id", "was": 2, "raised_to": 5}]
    assert done["raised"] == raised
    assert status(outrider, done["run"])["raised"] == raised
    assert outrider("runs", "show", done["run"], "--json").json["after"] == raised
    # No number that an attempt in the topic has is given out twice.
    assert scalar(world.ledger, "select nextval('outrider.delivery_attempt_attempt_id_seq')") == 6
    assert events(world) == admitted_events
    states = {name: world.delivery(delivery_id)["state"] for name, delivery_id in ids.items()}
    assert states == {
        **dict.fromkeys(("due", "late", "retried"), "pending"),
        **dict.fromkeys(("succeeded", "restored"), "succeeded"),
        **dict.fromkeys(("known", "behind"), "enqueued"),
        "dead": "dead",
    }
    attempts = {name: world.delivery(delivery_id)["attempt"] for name, delivery_id in ids.items()}
    assert attempts == {**dict.fromkeys(names, 0), "succeeded": 2, "dead": 1, "late": 1, "retried": 3, "restored": 1}
    assert report(outrider, done["run"])[ids["behind"]]["result"] == "advanced"
    # A number that lies in the topic is never given out again.
    world.enqueue_pending(world.ledger)
    sequences = {name: world.delivery(delivery_id)["dispatch_seq"] for name, delivery_id in ids.items()}
    assert sequences == {**dict.fromkeys(names, 2), "due": 3, "late": 3, "retried": 4}

    again = plan(outrider, tmp_path / "again")
    assert again["counts"] == []
    assert "attempt_ids" not in again
    assert again["read"]["messages"] == 16 + 6


def test_what_cannot_be_rebuilt_is_told_by_id(
    outrider: Outrider, world: World, bootstrap_servers: str, tmp_path: Path
) -> None:
    foreign, elsewhere, changed, bare = (
        "dlv_" + "0" * 32,
        delivery_identity("n", "nowhere"),
        *(delivery_identity(name, "acme") for name in ("changed", "bare")),
    )
    world.admit("changed", "acme", payload=b"as it was")
    world.ledger.execute("delete from outrider.delivery")

    def produce(delivery_id: str, event_id: str | None, destination_id: str, payload: bytes) -> None:
        headers = {
            "id": str(message_identity(delivery_id, 1)),
            "delivery_id": delivery_id,
            "dispatch_seq": "1",
            **({} if event_id is None else {"event_id": event_id, "event_type": "t", "content_type": "text/plain"}),
        }
        world.producer.produce(world.dispatch, key=destination_id, value=payload, headers=headers)

    world.producer.begin_transaction()
    produce(foreign, "e", "acme", b"x")
    produce(elsewhere, "n", "nowhere", b"x")
    produce(changed, "changed", "acme", b"forged")
    produce(bare, None, "acme", b"x")
    world.producer.commit_transaction(30)

    made = plan(outrider, tmp_path / "plan")
    assert {c["verdict"]: c["deliveries"] for c in made["counts"]} == dict.fromkeys(
        ("foreign", "no_destination", "other_event", "incomplete"), 1
    )
    done = ran(outrider, tmp_path / "plan")
    assert done["skipped"] == 4
    why = {delivery_id: row["why"] for delivery_id, row in report(outrider, done["run"]).items()}
    assert why == {foreign: "foreign", elsewhere: "no_destination", changed: "other_event", bare: "incomplete"}
    assert world.states() == {}


def events(world: World) -> list[tuple[Any, ...]]:
    return world.ledger.execute(
        "select event_id, event_type, content_type, payload, headers from outrider.event order by event_id"
    ).fetchall()


def test_numbers_of_attempts_are_raised_with_the_runs_record_or_not_at_all(
    outrider: Outrider, world: World, role_dsns: dict[str, str], bootstrap_servers: str, tmp_path: Path
) -> None:
    """Also in batches, of which a crash may be the last; never back, and never on the word of what is none of ours."""
    publish_attempts(world, bootstrap_servers, [("dlv_x", 1, "late", "success")] * 3)
    plan(outrider, tmp_path / "plan")
    ran(outrider, tmp_path / "plan")
    (run_id,) = world.ledger.execute("select run_id from outrider.replay").fetchone() or (None,)
    world.ledger.execute("update outrider.replay set phase = 'evidence'")
    world.ledger.execute("update outrider.run set finished_at = null, after = null where run_id = %s", (run_id,))

    def after() -> Any:
        return scalar(world.ledger, "select after from outrider.run where run_id = %s", run_id)

    def given() -> Any:
        return scalar(world.ledger, "select outrider.given_attempt_ids()")

    assert given() == 2
    with psycopg.connect(role_dsns["operator"]) as operator:
        lift = "select outrider.raise_attempt_ids(%s, %s)"
        operator.execute(lift, (run_id, 100))
        operator.rollback()
        assert (given(), after()) == (2, None)
        for proven in (100, 90, 250):
            operator.execute(lift, (run_id, proven))
            operator.commit()
        assert (given(), after()) == (
            250,
            [{"sequence": "outrider.delivery_attempt.attempt_id", "was": 2, "raised_to": 250}],
        )
        for wrong in (-1, 10**18, None):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="no attempt has the number"):
                operator.execute(lift, (run_id, wrong))
            operator.rollback()
        world.ledger.execute("update outrider.replay set phase = 'over'")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="rebuilds nothing now"):
            operator.execute(lift, (run_id, 300))
    assert given() == 250
