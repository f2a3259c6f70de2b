"""What the worker makes of answers, and what it shows receivers, on the real ledger and the real Kafka."""

from __future__ import annotations

import base64
import hashlib
import re

import psycopg
import pytest
from psycopg.types.json import Jsonb
from standardwebhooks import Webhook

from pipeline.core.sealing import Vault, new_key
from pipeline.core.signing import new_private_key, public_key_of, verify
from tests.support.delivery_world import Reply, opened, wait_until

SLOW = 3_600.0


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def runs(world, kind):
    return world._row("select * from outrider.run where kind = %s order by started_at", kind)


def destination(world, destination_id):
    return world._row("select * from outrider.destination where destination_id = %s", destination_id)[0]


def test_410_ends_the_delivery_and_disables_the_destination_on_the_record(world, component):
    world.receiver.reply = lambda received: Reply(410 if received.path in ("/a", "/ruled") else 200)
    for name in ("a", "b"):
        world.add_destination(name)
    world.add_destination("ruled", answer_rules=Jsonb({"410": "dead"}))
    first, *_ = world.admit("e1", "a", "b", "ruled")
    world.publish()
    component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"dead": 2, "succeeded": 1}, "two dead, one succeeded")

    gone = destination(world, "a")
    assert gone["enabled"] is False
    assert gone["disabled_reason"] == f"gone: it answered 410 to {first}, attempt 1"
    (run,) = runs(world, "destination.disable")
    assert (run["woken_by"], run["reason"]) == ("delivery", gone["disabled_reason"])
    assert run["counts"] == {"destination_id": "a", "delivery_id": first, "attempt": 1}
    # A rule that speaks of 410 takes it for a plain end; others are untouched.
    assert destination(world, "ruled")["enabled"]
    assert destination(world, "b")["enabled"]

    # What was admitted before, and what an operator brings back, waits and is not lost.
    with pytest.raises(psycopg.Error, match="disabled"):
        world.admit("e2", "a")


def test_410_from_an_url_that_was_changed_meanwhile_disables_nothing(world, component):
    def reply(received):
        if received.path == "/a":
            world.ledger.execute(
                "update outrider.destination set url = %s where destination_id = 'a'", (f"{world.receiver.url}/new",)
            )
            return Reply(410)
        return Reply(200)

    world.receiver.reply = reply
    world.add_destination("a")
    world.admit("e1", "a")
    world.publish()
    component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"dead": 1}, "dead")
    assert destination(world, "a")["enabled"] is True
    assert runs(world, "destination.disable") == []


def test_the_attempt_keeps_phases_and_a_bounded_part_of_the_answer(world, component):
    body = bytes(range(256)) * 40
    world.receiver.reply = lambda received: Reply(
        422, {"content-type": "text/plain", "x-request-id": "r" * 1000, "set-cookie": "s=1", "server": "\xe9"}, body
    )
    world.add_destination("a")
    (delivery_id,) = world.admit("e1", "a")
    world.publish()
    component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"dead": 1}, "dead")
    (attempt,) = world.attempts(delivery_id)
    assert attempt["response_excerpt"] == body[:4096]
    kept = attempt["response_headers"]
    assert (kept["content-type"], kept["x-request-id"]) == ("text/plain", "r" * 256)
    assert "set-cookie" not in kept
    assert attempt["dns_seconds"] is None  # the URL has an address
    assert 0 < attempt["connect_seconds"] <= attempt["duration_seconds"]
    assert 0 < attempt["first_byte_seconds"] <= attempt["duration_seconds"]
    assert attempt["tls_seconds"] is None


def test_rules_and_lists_of_delays_are_the_destinations_own(world, component):
    statuses = {"/again": 404, "/enough": 409, "/unknown": 401, "/listed": 500}
    world.receiver.reply = lambda received: Reply(statuses[received.path])
    world.add_destination("again", answer_rules=Jsonb({"404": "retry"}), retry_delays_seconds=[SLOW])
    world.add_destination("enough", answer_rules=Jsonb({"409": "success"}))
    world.add_destination("unknown", unauthorized_delays_seconds=[SLOW])
    world.add_destination("listed", retry_delays_seconds=[SLOW])
    world.admit("e1", "again", "enough", "unknown", "listed")
    ids = {
        row["destination_id"]: row["delivery_id"]
        for row in world._row("select destination_id, delivery_id from outrider.delivery")
    }
    world.publish()
    component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"pending": 3, "succeeded": 1}, "each has been tried once")
    for name in ("again", "unknown", "listed"):
        (attempt,) = world.attempts(ids[name])
        delay = (attempt["next_attempt_at"] - attempt["recorded_at"]).total_seconds()
        assert SLOW * 0.99 < delay < SLOW * 1.11
    assert world.delivery(ids["unknown"])["unauthorized"] == 1
    assert world.delivery(ids["again"])["unauthorized"] == 0
    assert world.delivery(ids["enough"])["last_status"] == 409
    # The lists are used up with the second attempt; the counts are told apart.
    world.redispatch_due()
    wait_until(lambda: world.states() == {"dead": 3, "succeeded": 1}, "the lists are used up")
    assert "unauthorized_exhausted" in world.delivery(ids["unknown"])["last_error"]
    assert "attempts_exhausted" in world.delivery(ids["listed"])["last_error"]


def test_both_schemes_sign_through_rotations_and_secrets_are_sealed(world, component):
    """Sealed or not, current or previous, v1 or v1a: each key that is valid signs, and the bytes are those admitted."""
    key = new_key("k1")
    vault = Vault.of(key)
    plain = world.add_destination("a", static_headers=Jsonb({"x-tenant": "seven"}))
    sealed = "whsec_" + base64.b64encode(b"s" * 32).decode()
    private, previous = new_private_key(), new_private_key()
    rows = [
        (vault.seal(sealed, purpose="signing", owner="a"), "v1", None, None),
        (vault.seal(private, purpose="signing", owner="a"), "v1a", public_key_of(private), None),
        (vault.seal(previous, purpose="signing", owner="a"), "v1a", public_key_of(previous), "1 hour"),
        (vault.seal(new_private_key(), purpose="signing", owner="a"), "v1a", public_key_of(private), "-1 hour"),
    ]
    for row in rows:
        world.ledger.execute(
            "insert into outrider.destination_secret (destination_id, secret, scheme, public_key, valid_until) "
            "values ('a', %s, %s, %s, now() + %s::interval)",
            row,
        )
    token = "Bearer " + "t" * 40
    world.ledger.execute(
        "insert into outrider.destination_credential (destination_id, authorization_kind, authorization_value) "
        "values ('a', 'Bearer', %s)",
        (vault.seal(token, purpose="authorization", owner="a"),),
    )
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    payload = b'{"b": 1,  "a": 2}\r\n'
    answers = iter([500, 200])
    world.receiver.reply = lambda received: Reply(next(answers))
    (delivery_id,) = world.admit(
        "e1", "a", payload=payload, headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-tenant": "eight"}
    )
    world.publish()
    worker = component("worker", worker_id="w1", secrets_keys=key, log_level="debug")
    wait_until(
        lambda: world.redispatch_due() == 0 and world.states() == {"succeeded": 1}, "succeeded on its second attempt"
    )

    first, second = world.receiver.received
    for received in (first, second):
        headers, body = received.headers, received.body
        assert body == payload
        for secret in (plain, sealed):
            Webhook(secret).verify(body, headers)
        versions = [part.split(",")[0] for part in headers["webhook-signature"].split(" ")]
        assert sorted(versions) == ["v1", "v1", "v1a", "v1a"]
        for public in (public_key_of(private), public_key_of(previous)):
            stamp = headers["webhook-timestamp"]
            assert verify([public], delivery_id, stamp, headers["webhook-signature"], body, now=float(stamp))
        assert headers["authorization"] == token
        assert headers["x-tenant"] == "seven"
        assert re.fullmatch(f"00-{trace}-[0-9a-f]{{16}}-01", headers["traceparent"])
    assert first.headers["traceparent"] != second.headers["traceparent"]
    assert [len(attempt["key_ids"]) for attempt in world.attempts(delivery_id)] == [4, 4]
    log = worker.log_tail(10_000)
    assert not any(secret in log for secret in (plain, sealed, private, previous, token, key.partition(":")[2]))


def test_a_secret_that_cannot_be_opened_parks_and_loses_nothing(world, component):
    world.add_destination("a")
    world.add_destination("b")
    world.ledger.execute(
        "update outrider.destination_secret set secret = %s where destination_id = 'a'",
        (Vault.of(new_key("lost")).seal("whsec_AAAA", purpose="signing", owner="a"),),
    )
    world.admit("e1", "a", "b")
    world.publish()
    worker = component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"pending": 1, "succeeded": 1}, "one waits, the other is delivered")
    (waiting,) = world._row("select * from outrider.delivery where state = 'pending'")
    assert (waiting["destination_id"], waiting["attempt"], waiting["waiting_reason"]) == ("a", 0, "no_secret")
    assert "key lost, which is not in OUTRIDER_SECRETS_KEYS" in worker.log_tail(10_000)


def test_the_payloads_digest_is_that_of_the_bytes(world, component):
    payload = b"\0\xff" * 10
    world.add_destination("a")
    (delivery_id,) = world.admit("e1", "a", payload=payload, content_type="application/octet-stream")
    world.publish()
    component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"succeeded": 1}, "succeeded")
    (attempt,) = world.attempts(delivery_id)
    assert attempt["payload_sha256"] == hashlib.sha256(payload).digest()
