"""The worker as a process, on real Kafka and PostgreSQL, against a real receiver."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from standardwebhooks import Webhook

from tests.support.damaged_records import NotText, batch, produce_batch
from tests.support.delivery_world import PARTITIONS, Received, Reply, World, opened, wait_until


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def all_committed(world: World) -> bool:
    return world.committed() == world.ends()


def test_admitted_events_arrive_signed_and_are_settled(world, component):
    secrets = {name: world.add_destination(name) for name in ("a", "b", "c")}
    for number in range(100):
        world.admit(f"e{number}", "a", "b", "c", payload=b'{"n": %d}' % number, headers={"x-tenant": "t1"})
    world.publish()
    component("worker", worker_id="w1")
    wait_until(lambda: world.states() == {"succeeded": 300}, "300 succeeded")

    assert Counter(r.delivery_id for r in world.receiver.received).total() == 300
    assert len({r.delivery_id for r in world.receiver.received}) == 300
    for received in world.receiver.received:
        Webhook(secrets[received.path[1:]]).verify(received.body, received.headers)
        assert received.headers["idempotency-key"] == received.delivery_id
        assert received.headers["outrider-attempt"] == "1"
        assert received.headers["content-type"] == "application/json"
        assert received.headers["x-tenant"] == "t1"
        assert received.headers["user-agent"].startswith("outrider/")
    # The end of a partition is a transaction marker; the commit passes it.
    wait_until(lambda: all_committed(world), "every offset committed, markers included")


def test_a_rotated_secret_signs_beside_the_new_one(world, component):
    old = world.add_destination("a")
    world.ledger.execute("update outrider.destination_secret set valid_until = now() + interval '1 hour'")
    new = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
    world.ledger.execute("insert into outrider.destination_secret (destination_id, secret) values ('a', %s)", (new,))
    (delivery_id,) = world.admit("e", "a")
    world.publish()
    component("worker")
    wait_until(lambda: world.states() == {"succeeded": 1}, "success")
    (received,) = world.receiver.received
    for secret in (old, new):
        Webhook(secret).verify(received.body, received.headers)
    (attempt,) = world.attempts(delivery_id)
    assert len(attempt["key_ids"]) == 2


def test_answers_decide_what_follows(world, component):
    answers = {
        "ok": Reply(204),
        "gone": Reply(410, body=b"gone for good"),
        "rejected": Reply(422, body=b"bad field\0\xff"),
        "throttled": Reply(429, {"retry-after": "3600"}),
        "broken": Reply(500),
        "moved": Reply(302, {"location": world.receiver.url + "/ok"}),
        "drops": Reply(None),
    }
    world.receiver.reply = lambda received: answers[received.path[1:]]
    for name in answers:
        world.add_destination(name)
    world.add_destination("closed", url="http://127.0.0.1:9/")
    world.add_destination("internal", allowed_networks=[])
    world.add_destination("once", url=f"{world.receiver.url}/broken", retry_max_attempts=1)
    names = [*answers, "closed", "internal", "once"]
    ids = {name: world.admit(f"e-{name}", name)[0] for name in names}
    world.publish()
    component("worker", target_ports="1-65535")
    wait_until(lambda: all(world.attempts(ids[name]) for name in names), "an attempt of each")

    outcome = {name: world.attempts(ids[name])[0] for name in names}
    row = {name: world.delivery(ids[name]) for name in names}
    seen = {
        name: (row[name]["state"], outcome[name]["result"], outcome[name]["outcome"], outcome[name]["ambiguous"])
        for name in names
    }
    assert seen == {
        "ok": ("succeeded", "succeeded", "success", False),
        "gone": ("dead", "dead", "gone", False),
        "rejected": ("dead", "dead", "rejected", False),
        "throttled": ("pending", "retry", "throttled", False),
        "broken": ("pending", "retry", "server_error", True),
        "moved": ("pending", "retry", "redirect", False),
        "drops": ("pending", "retry", "connection_lost", True),
        "closed": ("pending", "retry", "connect_failed", False),
        "internal": ("pending", "retry", "target_refused", False),
        "once": ("dead", "dead", "server_error", True),
    }
    assert outcome["gone"]["response_excerpt"] == b"gone for good"
    assert outcome["rejected"]["response_excerpt"] == b"bad field\0\xff"
    assert outcome["once"]["error"] == "attempts_exhausted"
    assert outcome["throttled"]["retry_after_seconds"] == 3600
    wait_seconds = (row["throttled"]["next_attempt_at"] - outcome["throttled"]["recorded_at"]).total_seconds()
    assert wait_seconds == pytest.approx(3600, abs=5)
    assert row["throttled"]["waiting_reason"] == "throttled"
    wait_until(lambda: all_committed(world), "what is settled is committed, whatever its result")


def test_a_stale_message_is_a_no_op(world, component):
    world.add_destination("a")
    for number in range(20):
        world.admit(f"e{number}", "a")
    world.publish()
    component("worker")
    wait_until(lambda: world.states() == {"succeeded": 20}, "20 succeeded")
    world.publish_again()
    wait_until(lambda: all_committed(world), "the repeats are read")
    assert len(world.receiver.received) == 20
    assert world.ledger.execute("select count(*) from outrider.delivery_attempt").fetchone() == (20,)


def test_what_cannot_be_understood_goes_to_quarantine_and_holds_up_nothing(world, component):
    world.add_destination("a")
    good = {"id": "x", "delivery_id": "dlv_of_nobody", "dispatch_seq": "1"}
    world.producer.begin_transaction()
    for key, value, headers in [
        (None, b"no key", good),
        (b"a", b"no headers", None),
        (b"a", b"bad number", {**good, "dispatch_seq": "-1"}),
        (b"\xff", b"bad key", good),
        (b"a", b"unknown delivery", good),
        (b"nobody", b"unknown destination", good),
        (b"a", b"nul", {**good, "delivery_id": "a\0b"}),
    ]:
        world.producer.produce(world.dispatch, key=key, value=value, headers=headers)
    world.producer.commit_transaction(30)
    world.admit("e", "a")
    world.publish()
    component("worker")
    wait_until(lambda: world.states() == {"succeeded": 1}, "the good one arrives")
    wait_until(lambda: all_committed(world), "nothing is held up")
    records = world.records(world.quarantine)
    assert sorted(r.value() for r in records) == [
        b"bad key",
        b"bad number",
        b"no headers",
        b"no key",
        b"nul",
        b"unknown delivery",
        b"unknown destination",
    ]
    assert all(dict(r.headers())["quarantine_reason"] for r in records)
    by_value = {r.value(): r for r in records}
    assert by_value[b"unknown delivery"].key() == b"a"
    assert dict(by_value[b"unknown delivery"].headers())["delivery_id"] == b"dlv_of_nobody"


def test_a_message_without_the_payload_sends_the_admitted_bytes(world, component):
    world.add_destination("a")
    (delivery_id,) = world.admit("e", "a", payload=b"the admitted bytes")
    world.producer.begin_transaction()
    for value in (None, b"other bytes"):
        headers = {"id": "x", "delivery_id": delivery_id, "dispatch_seq": "1"}
        world.producer.produce(world.dispatch, key=b"a", value=value, headers=headers)
    world.producer.commit_transaction(30)
    component("worker")
    wait_until(lambda: world.states() == {"succeeded": 1}, "success")
    assert [r.body for r in world.receiver.received] == [b"the admitted bytes"]


def test_a_disabled_destination_parks_and_spends_no_attempt(world, component):
    world.add_destination("a")
    ids = [world.admit(f"e{n}", "a")[0] for n in range(10)]
    world.ledger.execute("update outrider.destination set enabled = false")
    world.publish()
    component("worker")
    wait_until(lambda: world.states() == {"pending": 10}, "10 parked")
    assert {world.delivery(i)["waiting_reason"] for i in ids} == {"destination_disabled"}
    assert {world.delivery(i)["attempt"] for i in ids} == {0}
    wait_until(lambda: all_committed(world), "parked is done")
    world.ledger.execute("update outrider.destination set enabled = true")

    def enabled_again() -> bool:
        world.redispatch_due()
        return world.states() == {"succeeded": 10}

    wait_until(enabled_again, "the worker notices that it is enabled")
    assert len(world.receiver.received) == 10


def test_a_rate_parks_what_would_wait_and_the_rest_is_started_at_the_rate(world, component):
    world.add_destination("slow", start_rate_per_second=2, burst=3)
    world.add_destination("fast")
    for number in range(100):
        world.admit(f"s{number}", "slow")
    for number in range(50):
        world.admit(f"f{number}", "fast")
    world.publish()
    component("worker")
    wait_until(lambda: sum(r.path == "/fast" for r in world.receiver.received) == 50, "the fast one is not held up")
    wait_until(lambda: all_committed(world), "nothing waits in the partition")
    rows = world.ledger.execute(
        "select state, waiting_reason, attempt, extract(epoch from next_attempt_at - now()) from outrider.delivery "
        "where destination_id = 'slow'"
    ).fetchall()
    parked = [row for row in rows if row[0] == "pending"]
    assert len(parked) >= 90
    assert {(reason, attempt) for _, reason, attempt, _ in parked} == {("rate", 0)}
    due = sorted(float(row[3]) for row in parked)
    # Spread along the rate: two a second, so no ten of them within less than four seconds.
    assert all(due[n + 9] - due[n] > 4.0 for n in range(0, 60, 10))


def test_a_destination_that_hangs_costs_the_others_nothing(world, component):
    released = threading.Event()

    def reply(received: Received) -> Reply:
        if received.path == "/hangs":
            released.wait(60)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("hangs", concurrency=8)
    world.add_destination("healthy")
    for number in range(500):
        world.admit(f"h{number}", "hangs")
    for number in range(100):
        world.admit(f"g{number}", "healthy")
    world.publish()
    component("worker", worker_concurrency=16)
    wait_until(lambda: sum(r.path == "/healthy" for r in world.receiver.received) == 100, "the healthy one")
    assert sum(r.path == "/hangs" for r in world.receiver.received) <= 8
    wait_until(
        lambda: (
            world.ledger.execute(
                "select count(*) >= 480 from outrider.delivery where state = 'pending' and waiting_reason = 'concurrency' "
                "or waiting_reason = 'lane_full'"
            ).fetchone()
            == (True,)
        ),
        "what waits for it is parked",
    )
    released.set()


def test_a_partition_that_is_full_is_held_back_and_goes_on(world, component):
    """Many more messages than a worker may hold; it reads on whenever it has settled enough of them."""
    world.receiver.reply = lambda received: Reply()
    for name in ("a", "b", "c"):
        world.add_destination(name)
    for number in range(1000):
        world.admit(f"e{number}", "a", "b", "c")
    world.publish()
    settings = {"worker_partition_high": 40, "worker_partition_low": 10, "worker_lane_depth": 100_000}
    component("worker", worker_park_after_seconds=3600, **settings)
    wait_until(lambda: world.states() == {"succeeded": 3000}, "all are delivered")
    wait_until(lambda: all_committed(world), "and committed")
    assert len(world.receiver.received) == 3000


def test_sigterm_drains_what_is_in_flight_and_commits(world, component):
    arrived, released = threading.Event(), threading.Event()

    def reply(received: Received) -> Reply:
        arrived.set()
        released.wait(60)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("a", concurrency=4)
    for number in range(4):
        world.admit(f"e{number}", "a")
    world.publish()
    worker = component("worker")
    wait_until(lambda: len(world.receiver.received) == 4, "four in flight")
    ending = threading.Thread(target=worker.terminate, args=(40,))
    ending.start()
    wait_until(lambda: "draining" in worker.log_tail(50), "the signal is heard")
    released.set()
    ending.join()
    assert worker.exit_status == 0
    assert world.states() == {"succeeded": 4}
    assert all_committed(world)


def test_a_broker_that_restarts_is_survived_or_ends_the_worker_with_a_line(world, component, embedded_stack):
    world.add_destination("a")
    worker = component("worker", worker_id="w1")
    world.admit("e1", "a")
    world.publish()
    wait_until(lambda: world.states() == {"succeeded": 1}, "the first")
    embedded_stack.kafka.restart()
    world.admit("e2", "a")
    wait_until(lambda: publishes(world), "the broker takes messages again")

    def arrived() -> bool:
        if not worker.is_running:
            assert worker.exit_status == 1
            assert "worker failed" in worker.log_tail(80)
            worker.start()
        return world.states() == {"succeeded": 2}

    wait_until(arrived, "the second, after the broker came back")


def test_sigterm_ends_the_worker_also_while_the_broker_is_away(world, component, embedded_stack):
    world.add_destination("a")
    worker = component("worker")
    world.admit("e1", "a")
    world.publish()
    wait_until(lambda: world.states() == {"succeeded": 1}, "it runs")
    embedded_stack.kafka.kill()
    try:
        worker.terminate(60)
    finally:
        embedded_stack.kafka.start()
    assert worker.exit_status == 0
    # What a broker that is away makes the client say over and over is thinned out.
    assert len(worker.log_tail(10_000).splitlines()) < 200


def publishes(world: World) -> bool:
    try:
        return world.publish() > 0
    except KafkaException:
        return False


def test_a_database_that_restarts_delays_and_loses_nothing(world, component, embedded_stack):
    world.add_destination("a")
    worker = component("worker")
    for number in range(200):
        world.admit(f"e{number}", "a")
    world.publish()
    wait_until(lambda: len(world.receiver.received) > 5, "some are on their way")
    dsn, password = world.ledger.info.dsn, world.ledger.info.password
    embedded_stack.postgres.restart()

    def settled() -> bool:
        try:
            # Places of claims whose commit was lost stay taken until the lease ends, so some may have been parked.
            world.redispatch_due()
            return world.states().get("succeeded", 0) + world.states().get("leased", 0) == 200
        except psycopg.OperationalError:
            world.ledger = psycopg.connect(dsn, password=password, autocommit=True)
            return False

    wait_until(settled, "everything is settled, or has a lease that runs out")
    assert worker.is_running
    assert len({r.delivery_id for r in world.receiver.received}) >= world.states()["succeeded"]


def test_start_errors_are_one_line_that_names_the_mend(world, component):
    no_topic = component("worker", topic_prefix="nobody.made.these")
    no_broker = component("worker", kafka_bootstrap_servers="127.0.0.1:9")
    no_database = component("worker", postgres_dsn="postgresql://nobody@127.0.0.1:9/none")
    wait_until(lambda: "run outrider topics apply" in no_topic.log_tail(20), "the missing topic is named")
    wait_until(lambda: "OUTRIDER_KAFKA_BOOTSTRAP_SERVERS" in no_broker.log_tail(20), "the setting is named")
    wait_until(lambda: "OUTRIDER_POSTGRES_DSN" in no_database.log_tail(40), "the setting is named")
    for worker in (no_topic, no_broker, no_database):
        worker.terminate(20)
        assert worker.exit_status == 0


def produce_plainly(world: World, bootstrap_servers: str, *records: dict) -> None:
    """Outside the transactions of the connector, and as large as the topic takes."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.max.bytes": 6_000_000, "log_level": 0})
    refused = []
    for record in records:
        producer.produce(world.dispatch, on_delivery=lambda error, _: error and refused.append(error), **record)
    assert producer.flush(30) == 0
    assert refused == []


def test_messages_at_the_limits_of_their_parts_are_quarantined_and_end_no_worker(world, component, bootstrap_servers):
    large = 4 * 1024 * 1024 - 200
    produce_plainly(
        world,
        bootstrap_servers,
        {"key": None, "value": None},
        {"key": None, "value": b""},
        {"key": b"", "value": None},
        {"key": b"k" * large, "value": None},
        {"key": b"k" * (large // 2), "value": b"v" * (large // 2)},
        {"key": b"k", "value": b"v" * large},
        {"key": b"k", "value": None, "headers": [("h", b"x" * large)]},
        {"key": b"k", "value": b"many", "headers": [(f"h{n}", None) for n in range(20_000)]},
    )
    world.add_destination("a")
    world.admit("e", "a")
    world.publish()
    worker = component("worker")
    wait_until(lambda: world.states() == {"succeeded": 1}, "the good one arrives")
    wait_until(lambda: all_committed(world), "nothing is held up")
    assert worker.is_running
    records = world.records(world.quarantine)
    assert len({dict(r.headers())["quarantine_origin"] for r in records}) == 8
    assert all(r.value() is not None for r in records)
    assert b"many" in {r.value() for r in records}
    assert "quarantine did not take it" not in worker.log_tail(10_000)


def test_a_record_that_the_client_cannot_parse_is_quarantined_and_its_batch_goes_on(
    world, component, bootstrap_servers
):
    world.add_destination("a")
    ids = [world.admit(f"e{number}", "a")[0] for number in range(3)]
    good = [
        (b"a", b"{}", [("id", b"x"), ("delivery_id", delivery_id.encode()), ("dispatch_seq", b"1")])
        for delivery_id in ids
    ]
    bad = (b"a", b"unreadable", [("id", b"x"), (NotText("x"), b"y")])
    for partition in range(PARTITIONS):
        produce_batch(bootstrap_servers, world.dispatch, partition, batch(bad))
    produce_batch(bootstrap_servers, world.dispatch, 1, batch(good[0], bad, good[1], bad, good[2]))
    worker = component("worker")
    wait_until(lambda: world.states() == {"succeeded": 3}, "what surrounds the damage arrives")
    wait_until(lambda: all_committed(world), "nothing is held up")
    assert worker.is_running
    records = world.records(world.quarantine)
    assert [(r.key(), r.value()) for r in records] == [(b"a", b"unreadable")] * (PARTITIONS + 2)
    assert all(b"cannot be read" in dict(r.headers())["quarantine_reason"] for r in records)


def make_dispatch_again(world: World, bootstrap_servers: str) -> None:
    """Delete the dispatch topic and make it again, empty."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.delete_topics([world.dispatch])[world.dispatch].result(30)

    def is_made() -> bool:
        try:
            admin.create_topics([NewTopic(world.dispatch, PARTITIONS, 1)])[world.dispatch].result(30)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    wait_until(is_made, "the old topic is gone and the new one is there")


def produce_deliveries(world: World, bootstrap_servers: str, deliveries: dict[str, str]) -> None:
    produce_plainly(
        world,
        bootstrap_servers,
        *(
            {
                "key": destination_id.encode(),
                "value": b"{}",
                "headers": {"id": "x", "delivery_id": delivery_id, "dispatch_seq": "1"},
            }
            for delivery_id, destination_id in deliveries.items()
        ),
    )


@pytest.mark.parametrize("is_running", [True, False])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(world, component, bootstrap_servers, is_running):
    """By a worker that runs meanwhile, and by one that starts with committed offsets behind the end of the log."""
    names = [f"d{number}" for number in range(12)]
    for name in names:
        world.add_destination(name)
    for number in range(10):
        world.admit(f"e{number}", *names)
    world.publish()
    worker = component("worker")
    wait_until(lambda: world.states() == {"succeeded": 120}, "the old topic is read")
    wait_until(lambda: all_committed(world), "and committed")
    if not is_running:
        worker.terminate(40)
    make_dispatch_again(world, bootstrap_servers)
    if not is_running:
        worker.start()
    produce_deliveries(world, bootstrap_servers, {world.admit("new", name)[0]: name for name in names})
    wait_until(lambda: world.states() == {"succeeded": 132}, "the new topic is read")
    wait_until(lambda: all_committed(world), "and committed")
    assert worker.is_running


def test_a_topic_that_was_made_again_under_messages_in_flight_is_read_or_ends_the_worker(
    world, component, bootstrap_servers
):
    released = threading.Event()

    def reply(received: Received) -> Reply:
        if received.path == "/hangs":
            released.wait(120)
        return Reply()

    world.receiver.reply = reply
    world.add_destination("hangs", timeout_seconds=120)
    world.add_destination("a")
    for number in range(20):
        world.admit(f"h{number}", "hangs")
    world.publish()
    worker = component("worker", worker_park_after_seconds=3600)
    wait_until(lambda: len(world.receiver.received) == 20, "all are under way")
    make_dispatch_again(world, bootstrap_servers)
    produce_deliveries(world, bootstrap_servers, dict.fromkeys(world.admit("a", "a"), "a"))

    def arrived() -> bool:
        if not worker.is_running:
            assert worker.exit_status == 1
            assert "was made again while" in worker.log_tail(200)
            worker.start()
        return any(r.path == "/a" for r in world.receiver.received)

    wait_until(arrived, "the new topic is read")
    released.set()
