"""``outrider delivery …`` and ``outrider reconcile run`` on a real ledger, with the operator's rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pipeline.core.ids import message_identity
from pipeline.ledger.operator import Act
from pipeline.ledger.operator_deliveries import retry_as_found
from tests.support.ledger_rows import STATES, add_delivery, add_destination, connect, delivery, ledger, scalar
from tests.support.program import Outrider, program

PAST = "2020-01-01T00:00:00Z"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        yield connection


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], role_dsns: dict[str, str]
) -> Outrider:
    return program(monkeypatch, capsys, postgres_dsn=role_dsns["operator"])


def runs(connection: psycopg.Connection) -> list[dict[str, Any]]:
    return connection.cursor(row_factory=dict_row).execute("select * from outrider.run order by started_at").fetchall()


def one_in_each_state(connection: psycopg.Connection) -> dict[str, str]:
    return {state: add_delivery(connection, state, state) for state in STATES}


def test_waiting_gives_each_delivery_its_reason_and_next_look(
    outrider: Outrider, connection: psycopg.Connection
) -> None:
    add_destination(connection, "off")
    ids = one_in_each_state(connection)
    ids["held"] = add_delivery(connection, "held", "pending", "off", waiting_reason="destination_disabled")
    connection.execute("update outrider.destination set enabled = false where destination_id = 'off'")
    connection.execute("update outrider.delivery set waiting_reason = 'throttled' where event_id = 'pending'")
    ids["lost"] = add_delivery(connection, "lost", "enqueued", dispatches_lost=2)

    listed = outrider("delivery", "list", "--waiting", "--json").json["deliveries"]

    found = {entry["delivery_id"]: (entry["waits_for"], entry["looked_at_next"]) for entry in listed}
    assert set(found) == {ids[name] for name in ("pending", "enqueued", "leased", "held", "lost")}
    times = {
        state: delivery(connection, ids[state])[column].isoformat()
        for state, column in (("pending", "next_attempt_at"), ("enqueued", "lost_after"), ("leased", "lease_until"))
    }
    assert found[ids["pending"]] == ("throttled", times["pending"])
    assert found[ids["enqueued"]] == ("in transport", times["enqueued"])
    assert found[ids["leased"]] == ("attempt 1 in flight at w1", times["leased"])
    assert found[ids["held"]] == ("destination_disabled", None)
    assert found[ids["lost"]][0] == "in transport, 2 dispatches lost before"

    text = outrider("delivery", "list", "--waiting").stdout
    assert len(text.splitlines()) == 1 + len(found)
    assert "when enabled" in text
    assert "attempt 1 in flight at w1" in text


@pytest.mark.parametrize(
    ("options", "states"),
    [
        ([], {"pending", "enqueued", "leased"}),
        (["--waiting"], {"pending", "enqueued", "leased"}),
        (["--waiting", "--destination", "acme"], {"pending", "enqueued", "leased"}),
        (["--destination", "acme"], set(STATES)),
        (["--destination", "other"], set()),
        (["--dead"], {"dead"}),
        (["--dead", "--destination", "acme"], {"dead"}),
        (["--dead", "--destination", "other"], set()),
        *[(["--state", state, "--destination", "acme"], {state}) for state in STATES],
        *[(["--state", state], {state}) for state in STATES if state != "succeeded"],
    ],
)
def test_lists_hold_what_was_asked_for(
    outrider: Outrider, connection: psycopg.Connection, options: list[str], states: set[str]
) -> None:
    one_in_each_state(connection)
    add_destination(connection, "other")
    listed = outrider("delivery", "list", *options, "--json").json["deliveries"]
    assert sorted(entry["state"] for entry in listed) == sorted(states)


@pytest.mark.parametrize(
    "options", [["--waiting"], ["--destination", "acme"], ["--waiting", "--destination", "acme"], ["--dead"]]
)
def test_pages_follow_each_other_without_gap_or_repeat(
    outrider: Outrider, connection: psycopg.Connection, options: list[str]
) -> None:
    state = "dead" if "--dead" in options else "pending"
    ids = [add_delivery(connection, f"e{n}", state) for n in range(7)]
    # Some of the same moment, so that only the id tells them apart.
    connection.execute("update outrider.delivery set created_at = %s, settled_at = settled_at", (PAST,))
    connection.execute("update outrider.delivery set settled_at = created_at where settled_at is not null")
    seen: list[str] = []
    after: list[str] = []
    for _ in range(10):
        page = outrider("delivery", "list", *options, "--limit", "3", *after, "--json").json
        seen += [entry["delivery_id"] for entry in page["deliveries"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]
    assert seen == sorted(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--waiting", "--dead"], "exclude each other"),
        (["--dead", "--state", "dead"], "exclude each other"),
        (["--state", "succeeded"], "needs a --destination"),
        (["--after", "yesterday"], "take the cursor"),
        (["--after", "2020-01-01T00:00:00/x"], "take the cursor"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_in_one_line(
    outrider: Outrider, options: list[str], message: str
) -> None:
    refused = outrider("delivery", "list", *options)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_control_characters_do_not_reach_the_terminal(outrider: Outrider, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e\x1b[2J\nfaked line", "pending")
    for shown in (outrider("delivery", "list"), outrider("delivery", "show", delivery_id)):
        assert "\x1b" not in shown.stdout
        assert "\\x1b[2J\\nfaked line" in shown.stdout


def test_show_tells_a_deliverys_whole_story(outrider: Outrider, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "dead", last_status=400, last_error="no")
    connection.execute(
        "insert into outrider.delivery_attempt (delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, "
        "worker_id, result, outcome, status, ambiguous, response_excerpt, payload_sha256, started_at, duration_seconds) "
        "values (%s, 'e', 'test.event', 'acme', 1, 1, 'w1', 'dead', 'rejected', 400, false, %s, '', now(), 0.25)",
        (delivery_id, b"\xffnope"),
    )
    shown = outrider("delivery", "show", delivery_id, "--json").json
    assert shown["state"] == "dead"
    assert shown["event"]["payload_bytes"] == 4
    assert [(d["dispatch_seq"], d["reason"], d["message_id"]) for d in shown["dispatches"]] == [
        (1, "admitted", str(message_identity(delivery_id, 1)))
    ]
    ((attempt),) = shown["attempts"]
    assert (attempt["result"], attempt["status"], attempt["response_excerpt"]) == ("dead", 400, "\ufffdnope")
    text = outrider("delivery", "show", delivery_id).stdout
    assert "rejected" in text
    assert "admitted" in text


def test_show_of_nothing_is_one_line(outrider: Outrider) -> None:
    refused = outrider("delivery", "show", "dlv_nothing")
    assert (refused.exit_code, refused.stderr) == (1, "outrider: no delivery dlv_nothing\n")


def test_retry_hands_a_dead_delivery_to_kafka_again_on_record(
    outrider: Outrider, connection: psycopg.Connection
) -> None:
    delivery_id = add_delivery(connection, "e", "dead")
    done = outrider("delivery", "retry", delivery_id, "--reason", "receiver fixed", "--operator", "ada")
    assert (done.exit_code, done.stdout) == (0, f"retried {delivery_id}\n")
    after = delivery(connection, delivery_id)
    # The attempt goes on counting, and the identity stays.
    assert (after["state"], after["dispatch_seq"], after["attempt"], after["settled_at"]) == ("enqueued", 2, 1, None)
    outbox = connection.execute(
        "select message_id, reason, payload from outrider.dispatch_outbox where dispatch_seq = 2"
    ).fetchall()
    assert outbox == [(message_identity(delivery_id, 2), "replay", b"body")]
    (run,) = runs(connection)
    assert (run["kind"], run["operator"], run["reason"]) == ("delivery.retry", "ada", "receiver fixed")
    assert run["counts"] == {"moved": 1, "delivery_ids": [delivery_id], "force": False}


def test_what_waits_for_a_paused_destination_says_so(outrider: Outrider, connection: psycopg.Connection) -> None:
    add_delivery(connection, "e", "pending", waiting_reason="rate")
    connection.execute("update outrider.destination set paused_at = clock_timestamp()")
    (entry,) = outrider("delivery", "list", "--json").json["deliveries"]
    assert (entry["waits_for"], entry["looked_at_next"]) == ("destination_paused", None)
    assert "when resumed" in outrider("delivery", "list").stdout


@pytest.mark.parametrize("state", ["leased", "succeeded"])
def test_retry_leaves_what_is_in_flight_or_has_succeeded(
    outrider: Outrider, connection: psycopg.Connection, state: str
) -> None:
    delivery_id = add_delivery(connection, "e", state)
    before = ledger(connection)
    left = outrider("delivery", "retry", delivery_id, "--reason", "r")
    assert left.exit_code == 1
    assert f"{delivery_id} is {state}" in left.stderr
    assert ledger(connection) == before


@pytest.mark.parametrize("state", ["pending", "enqueued"])
def test_retry_brings_forward_what_waits_or_was_lost(
    outrider: Outrider, connection: psycopg.Connection, state: str
) -> None:
    delivery_id = add_delivery(connection, "e", state, dispatches_lost=0 if state == "pending" else 3)
    assert outrider("delivery", "retry", delivery_id, "--reason", "r").exit_code == 0
    after = delivery(connection, delivery_id)
    assert (after["state"], after["dispatch_seq"], after["attempt"]) == ("enqueued", 2, 1)
    assert (after["dispatches_lost"], after["next_attempt_at"]) == (0, None)


def test_retry_of_a_success_must_be_forced(outrider: Outrider, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "succeeded")
    assert outrider("delivery", "retry", delivery_id, "--reason", "r", "--force").exit_code == 0
    assert delivery(connection, delivery_id)["state"] == "enqueued"


@pytest.mark.parametrize("state", ["enqueued", "succeeded"])
def test_what_two_repairs_found_alike_is_dispatched_once(connection: psycopg.Connection, state: str) -> None:
    other = "succeeded" if state == "enqueued" else "enqueued"
    as_found, moved_on, elsewhere = (
        add_delivery(connection, "a", state),
        add_delivery(connection, "b", state, dispatch_seq=2),
        add_delivery(connection, "c", other),
    )
    found = dict.fromkeys((as_found, moved_on, elsewhere), 1)
    act = Act("ada", "not at the receiver")
    assert retry_as_found(connection, found, state, act) == [as_found]
    if state == "succeeded":  # it has come to pass a second time
        connection.execute(
            "update outrider.delivery set state = 'succeeded', lost_after = null, settled_at = now() where delivery_id = %s",
            (as_found,),
        )
    assert retry_as_found(connection, found, state, act) == []
    assert delivery(connection, as_found)["dispatch_seq"] == 2


def test_named_retry_tells_what_moved_and_what_did_not(outrider: Outrider, connection: psycopg.Connection) -> None:
    dead, leased = add_delivery(connection, "a", "dead"), add_delivery(connection, "b", "leased")
    done = outrider("delivery", "retry", dead, leased, "dlv_x", "--reason", "r", "--json")
    assert done.exit_code == 1
    assert done.json == {"moved": [dead], "left": {leased: "leased", "dlv_x": "unknown"}}


def test_retry_of_all_dead_ones_counts_first(outrider: Outrider, connection: psycopg.Connection) -> None:
    add_destination(connection, "other")
    for n in range(5):
        add_delivery(connection, f"e{n}", "dead")
    foreign = add_delivery(connection, "foreign", "dead", "other")
    before = ledger(connection)
    preview = outrider("delivery", "retry", "--dead", "--destination", "acme", "--reason", "r")
    assert (preview.exit_code, preview.stdout) == (
        0,
        "would retry 5 dead deliveries of acme; repeat with --yes to do it\n",
    )
    assert ledger(connection) == before

    done = outrider("delivery", "retry", "--dead", "--destination", "acme", "--reason", "r", "--yes", "--json")
    assert done.json == {"selected": 5, "moved": 5}
    assert delivery(connection, foreign)["state"] == "dead"
    # Due now, and handed out at the destination's rate: a thousand at once would lie in front of everybody's messages.
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox where reason = 'replay'") == 0
    due = "select count(*) from outrider.delivery where state = 'pending' and next_attempt_at <= clock_timestamp()"
    assert scalar(connection, due) == 5
    (run,) = runs(connection)
    assert run["counts"] == {"destination_id": "acme", "selected": 5, "moved": 5}
    assert (run["error"], run["finished_at"] is None) == (None, False)


def test_bulk_acts_go_page_by_page_and_end(outrider: Outrider, connection: psycopg.Connection) -> None:
    total = 1_203
    connection.execute(
        "with e as (insert into outrider.event (event_id, event_type, content_type, payload, by_subscription) "
        "select 'e' || n, 't', 'c/t', 'x', false from generate_series(1, %s) as n returning event_id) "
        "insert into outrider.delivery (delivery_id, event_id, destination_id, state, dispatch_seq, settled_at) "
        "select 'dlv_' || event_id, event_id, 'acme', 'dead', 1, clock_timestamp() from e",
        (total,),
    )
    done = outrider("delivery", "retry", "--dead", "--destination", "acme", "--reason", "r", "--yes", "--json")
    assert done.json == {"selected": total, "moved": total}
    pages = connection.execute(
        "select count(*) from outrider.delivery where state = 'pending' group by xmin::text order by 1 desc"
    ).fetchall()
    assert pages == [(500,), (500,), (203,)]


def test_cancel_ends_pending_deliveries_on_record(outrider: Outrider, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "pending")
    assert outrider("delivery", "cancel", delivery_id, "--reason", "wrong price").exit_code == 0
    after = delivery(connection, delivery_id)
    assert (after["state"], after["last_outcome"], after["next_attempt_at"]) == ("dead", "cancelled", None)
    assert after["settled_at"] is not None
    (run,) = runs(connection)
    assert (run["kind"], run["reason"]) == ("delivery.cancel", "wrong price")


def test_cancel_ends_what_is_in_transport_too(outrider: Outrider, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "enqueued", dispatches_lost=2)
    assert outrider("delivery", "cancel", delivery_id, "--reason", "wrong price").exit_code == 0
    after = delivery(connection, delivery_id)
    assert (after["state"], after["last_outcome"], after["lost_after"]) == ("dead", "cancelled", None)


@pytest.mark.parametrize("state", ["leased", "succeeded", "dead"])
def test_cancel_leaves_what_is_in_flight_or_over(
    outrider: Outrider, connection: psycopg.Connection, state: str
) -> None:
    delivery_id = add_delivery(connection, "e", state)
    before = ledger(connection)
    left = outrider("delivery", "cancel", delivery_id, "--reason", "r")
    assert left.exit_code == 1
    assert f"{delivery_id} is {state}" in left.stderr
    assert ledger(connection) == before


def test_cancel_of_all_pending_ones_counts_first(outrider: Outrider, connection: psycopg.Connection) -> None:
    for n in range(3):
        add_delivery(connection, f"e{n}", "pending")
    enqueued = add_delivery(connection, "on its way", "enqueued")
    preview = outrider("delivery", "cancel", "--pending", "--destination", "acme", "--reason", "r", "--json")
    assert preview.json == {"selected": 3, "moved": 0}
    done = outrider("delivery", "cancel", "--pending", "--destination", "acme", "--reason", "r", "--yes")
    assert done.stdout == "cancelled 3 of 3 pending deliveries of acme\n"
    assert delivery(connection, enqueued)["state"] == "enqueued"


def test_a_selection_is_narrowed_by_outcome_and_age(outrider: Outrider, connection: psycopg.Connection) -> None:
    ids = {
        outcome: add_delivery(connection, outcome, "dead", last_outcome=outcome, created_at="2020-01-01T00:00:00Z")
        for outcome in ("rejected", "gone")
    }
    young = add_delivery(connection, "young", "dead", last_outcome="rejected")
    options = ("--dead", "--outcome", "rejected", "--older-than", "2d", "--reason", "r")
    preview = outrider("delivery", "retry", *options)
    assert preview.stdout == (
        "would retry 1 dead deliveries with the outcome rejected older than 2 days, 0:00:00; repeat with --yes to do it\n"
    )
    assert outrider("delivery", "retry", *options, "--yes", "--json").json == {"selected": 1, "moved": 1}
    states = {name: delivery(connection, ids[name])["state"] for name in ids}
    assert states == {"rejected": "pending", "gone": "dead"}
    assert delivery(connection, young)["state"] == "dead"
    assert runs(connection)[-1]["counts"]["outcome"] == "rejected"


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_all_in_transport_can_be_selected(outrider: Outrider, connection: psycopg.Connection, verb: str) -> None:
    delivery_id = add_delivery(connection, "e", "enqueued")
    add_delivery(connection, "waits", "pending")
    done = outrider("delivery", verb, "--enqueued", "--destination", "acme", "--reason", "r", "--yes", "--json")
    assert done.json == {"selected": 1, "moved": 1}
    assert delivery(connection, delivery_id)["state"] == ("pending" if verb == "retry" else "dead")


def test_ids_can_come_from_a_file(outrider: Outrider, connection: psycopg.Connection, tmp_path: Path) -> None:
    ids = [add_delivery(connection, f"e{n}", "dead") for n in range(3)]
    file = tmp_path / "ids"
    file.write_text("\n".join([*ids, "", ids[0]]) + "\n")
    options = ("--ids-from", str(file), "--reason", "r")
    assert outrider("delivery", "retry", *options).stdout.startswith("would retry 3 named deliveries")
    assert {delivery(connection, delivery_id)["state"] for delivery_id in ids} == {"dead"}
    done = outrider("delivery", "retry", *options, "--yes")
    assert (done.exit_code, done.stdout) == (0, "retried 3 of 3 named deliveries\n")
    file.write_text("dlv_nobody\n")
    assert outrider("delivery", "retry", *options, "--yes").exit_code == 1
    file.write_text("\n")
    assert "names no delivery" in outrider("delivery", "retry", *options).stderr


def test_a_destination_that_does_not_exist_is_named_and_no_empty_list(outrider: Outrider) -> None:
    for command in (["list"], ["retry", "--dead", "--reason", "r"], ["cancel", "--pending", "--reason", "r"]):
        refused = outrider("delivery", *command, "--destination", "nobody")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == "outrider: no destination nobody: see outrider destination list\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["retry", "--reason", "r"],
        ["retry", "--dead", "--reason", "r"],
        ["retry", "--destination", "acme", "--reason", "r"],
        ["retry", "dlv_x", "--dead", "--destination", "acme", "--reason", "r"],
        ["retry", "--dead", "--destination", "acme", "--reason", "r", "--force"],
        ["cancel", "--reason", "r"],
        ["cancel", "--pending", "--reason", "r"],
        ["cancel", "dlv_x", "--destination", "acme", "--reason", "r"],
    ],
)
def test_an_act_without_a_clear_selection_is_refused(outrider: Outrider, arguments: list[str]) -> None:
    refused = outrider("delivery", *arguments)
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["retry", "cancel"])
def test_an_act_needs_a_reason(outrider: Outrider, command: str) -> None:
    assert outrider("delivery", command, "dlv_x").exit_code == 2


def test_a_bulk_act_that_fails_says_so_in_its_run_and_counts_right(
    outrider: Outrider, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        add_delivery(connection, f"e{n}", "dead")
    monkeypatch.setattr("pipeline.ledger.operator_deliveries.PAGE_ROWS", 2)
    # The second page fails in the database: what it did is undone, what came before stands.
    connection.execute(
        "create function public.fail_later() returns trigger language plpgsql as $$ begin "
        "if (select count(*) from outrider.delivery where state = 'pending') >= 2 then "
        "raise exception 'disk full' using errcode = '53100'; end if; return new; end $$; "
        "alter function public.fail_later security definer; "
        "create trigger fail_later before update on outrider.delivery "
        "for each row when (new.state = 'pending') execute function public.fail_later()"
    )
    failed = outrider("delivery", "retry", "--dead", "--destination", "acme", "--reason", "r", "--yes")
    assert failed.exit_code == 1
    assert "disk full" in failed.stderr
    (run,) = runs(connection)
    assert (
        run["counts"]["moved"]
        == scalar(connection, "select count(*) from outrider.delivery where state = 'pending'")
        == 2
    )
    assert "disk full" in run["error"]


def test_reconcile_run_is_one_pass_now(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    role_dsns: dict[str, str],
    connection: psycopg.Connection,
) -> None:
    outrider = program(monkeypatch, capsys, postgres_dsn=role_dsns["worker"])
    due = add_delivery(connection, "due", "pending", next_attempt_at=PAST)
    add_delivery(connection, "later", "pending")
    done = outrider("reconcile", "run", "--operator", "ada", "--reason", "after the outage", "--json")
    assert done.exit_code == 0
    (run,) = runs(connection)
    assert done.json == {
        "run_id": str(run["run_id"]),
        "due": 1,
        "lost": 0,
        "lease_expired": 0,
        "is_complete": True,
    }
    assert (run["kind"], run["woken_by"], run["operator"]) == ("reconcile", "operator", "ada")
    assert delivery(connection, due)["state"] == "enqueued"
    # Asked for by a person, a pass that finds nothing is on record too.
    assert "due" in outrider("reconcile", "run").stdout
    assert len(runs(connection)) == 2


def test_json_is_one_line_for_every_reading_command(outrider: Outrider, connection: psycopg.Connection) -> None:
    delivery_id = add_delivery(connection, "e", "pending")
    for command in (["list"], ["list", "--dead"], ["show", delivery_id]):
        printed = outrider("delivery", *command, "--json").stdout
        assert printed.count("\n") == 1
        json.loads(printed)
