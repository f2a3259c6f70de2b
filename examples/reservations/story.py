"""The reservations' story: from a cron scan to a source and back, and what a slow receiver does to a delivery."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from psycopg import sql

from examples.receiver import Answer
from examples.stage import PARTITIONS, Stage
from pipeline.core.ids import delivery_identity
from pipeline.demo.topic_view import read_to_end
from pipeline.stack.child_process import ChildProcess

FOLDER: Final = Path(__file__).parent
SOURCES: Final = FOLDER / "sources"
RECEIVER: Final = "booking"
FIRST_HALF, SECOND_HALF = (0, 1), (2, 3)
SCAN_PAGE: Final = 20
SCAN_SECONDS: Final = 0.05
MORE: Final = 6
"""Events that a path admits before the next step is taken."""
TIMEOUT_SECONDS: Final = 1.0
GRACE: Final = "600"
WORKER: Final = {"worker_destination_cache_seconds": 0.2, "worker_breaker_failures": 1_000}


def play(stage: Stage) -> None:
    """Raises ProofError for what does not hold."""
    secret = prepare(stage)
    stage.start("reconciler")
    stage.start("connector")
    _the_move_and_its_rollback(stage)
    worker = stage.start("worker", worker_id="frozen", **WORKER)
    stage.wait(lambda: stage.states().keys() == {"succeeded"}, "all of them are delivered")
    # The rest of the story looks at single deliveries.
    _a_receiver_that_answers_too_late(stage)
    _a_lease_that_ends_during_a_request(stage, worker)
    _keys_that_rotate(stage, secret)
    _an_old_dispatch_after_success(stage)
    _nothing_was_done_twice(stage)


def prepare(stage: Stage) -> str:
    """Tables, rights and the receiver; its secret."""
    stage.make_schema(FOLDER / "schema.sql")
    application, reconciler = stage.login("application"), stage.login("reconciler")
    stage.admin.execute(
        sql.SQL(
            "grant usage on schema reservations to {application}, {reconciler};"
            "grant select on reservations.reservation to {application}, {reconciler};"
            "grant insert on reservations.reservation to {application};"
            "grant execute on function reservations.confirm to {application};"
            "grant execute on function reservations.expire to {application}, {reconciler}"
        ).format(application=application, reconciler=reconciler)
    )
    return stage.add_destination(RECEIVER, subscribe="reservation.*", timeout_seconds=TIMEOUT_SECONDS)


class Business:
    """The application: it makes reservations all the time, and scans for those that are over, as its cron job did."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._reserve, self._scan)]
        self.error: Exception | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)
        if self.error is not None:
            raise self.error

    def _reserve(self) -> None:
        self._repeat(0.1, "insert into reservations.reservation (reservation_id, version, expires_at) "
                          "select gen_random_uuid()::text, 1, clock_timestamp() from generate_series(1, 8)")  # fmt: skip

    def _scan(self) -> None:
        self._repeat(SCAN_SECONDS, f"select reservations.scan({SCAN_PAGE})")

    def _repeat(self, pause_seconds: float, statement: str) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True, application_name="reservations") as connection:
                while not self._ended.wait(pause_seconds):
                    connection.execute(statement.encode())
        except psycopg.Error as error:
            self.error = error


@contextmanager
def _business(stage: Stage) -> Iterator[Business]:
    business = Business(stage.dsns["application"])
    business.start()
    try:
        yield business
    finally:
        business.end()


def _the_move_and_its_rollback(stage: Stage) -> None:
    with _business(stage):
        _wait_for_more(stage, "application", *FIRST_HALF, *SECOND_HALF)
        _switch(stage, "shadow")
        stage.wait(lambda: _compared(stage)["rows"]["both"] >= MORE, "both paths are compared")
        report = _compared(stage)
        stage.prove(
            report["difference_rows"] == 0 and _admitted(stage, "reconciler") == 0,
            "in shadow mode the source sees what the cron scan admits, and admits nothing",
        )
        for half in (FIRST_HALF, SECOND_HALF):
            _switch(stage, "live", *half)
            _wait_for_more(stage, "reconciler", *half)
        stage.say("shard by shard the source has taken over")
        _switch(stage, "off")
        left = _admitted(stage, "reconciler")
        _wait_for_more(stage, "application", *FIRST_HALF, *SECOND_HALF)
        stage.prove(
            _admitted(stage, "reconciler") == left, "after the rollback the cron scan goes on, and the source rests"
        )
    _switch(stage, "live")
    stage.wait(
        lambda: stage.value("select count(*) from reservations.reservation where state = 'held'") == 0,
        "nothing is left behind",
    )
    stage.prove(
        stage.value(
            "select count(*) from reservations.reservation r full join outrider.event e "
            "on e.event_id = reservations.event_id(r.reservation_id, r.version) "
            "where e.event_id is null or r.state is distinct from 'expired'"
        )
        == 0,
        "each version that expired has its one event, whichever path told of it",
    )
    events = [row[0] for row in stage.admin.execute("select event_id from outrider.event").fetchall()]
    found = {row[0] for row in stage.admin.execute("select delivery_id from outrider.delivery").fetchall()}
    stage.prove(found == {delivery_identity(event, RECEIVER) for event in events}, "and no identity knows the path")


def _a_receiver_that_answers_too_late(stage: Stage) -> None:
    free = threading.Event()

    def after(_: str) -> None:
        if len(stage.receiver.requests) == before + 1:
            free.wait(30)

    before = len(stage.receiver.requests)
    stage.receiver.after = after
    delivery_id = _expire_one(stage, "slow answer")
    stage.wait(lambda: _is(stage, delivery_id, "succeeded"), "the second try succeeds")
    free.set()
    stage.receiver.after = lambda destination_id: None
    first, *_ = _log(stage, delivery_id)
    stage.prove(
        first["outcome"] == "timeout_after_sent" and first["ambiguous"] and _is_one_effect(stage, delivery_id),
        "the receiver applied and the sender timed out: the same id came again, and it was one effect",
    )


def _a_lease_that_ends_during_a_request(stage: Stage, frozen: ChildProcess) -> None:
    held = threading.Event()
    before = len(stage.receiver.requests)

    def after(_: str) -> None:
        if len(stage.receiver.requests) == before + 1:
            held.wait(30)

    stage.receiver.after = after
    delivery_id = _expire_one(stage, "slow worker")
    try:
        stage.wait(lambda: len(stage.receiver.requests) == before + 1, "the request is on its way")
        _signal(frozen, signal.SIGSTOP)
        stage.start("worker", worker_id="other", **WORKER)
        stage.wait(lambda: _is(stage, delivery_id, "succeeded"), "another worker delivers when the lease is over")
        settled = _row(stage, delivery_id)
    finally:
        held.set()
        _signal(frozen, signal.SIGCONT)
        stage.receiver.after = lambda destination_id: None
    stage.wait(
        lambda: "late" in [entry["result"] for entry in _log(stage, delivery_id)], "the late result is on record"
    )
    stage.prove(
        _row(stage, delivery_id) == settled and _is_one_effect(stage, delivery_id),
        "a lease ended during a slow request: its late result is on record and moved nothing, and it was one effect",
    )
    frozen.terminate(30)


def _keys_that_rotate(stage: Stage, old: str) -> None:
    stage.receiver.answer = lambda destination_id, repeat: Answer(500, applies=False)
    delivery_id = _expire_one(stage, "rotated")
    stage.wait(lambda: stage.receiver.of(delivery_id), "a first try failed")
    printed = stage.outrider("destination", "rotate-secret", RECEIVER, "--reason", "yearly", "--json")
    stage.receiver.trust(RECEIVER, str(json.loads(printed)["secret"]), old)
    stage.wait(lambda: len(stage.receiver.of(delivery_id)[-1].signatures.split()) == 2, "both keys sign")
    stage.receiver.answer = lambda destination_id, repeat: Answer()
    stage.wait(lambda: _is(stage, delivery_id, "succeeded"), "it is delivered under both keys")
    requests = stage.receiver.of(delivery_id)
    stage.prove(
        len({request.body for request in requests}) == 1
        and stage.receiver.refused == 0
        and _is_one_effect(stage, delivery_id),
        "rotating keys changed neither id nor bytes, and both keys signed the same id for a while",
    )


def _an_old_dispatch_after_success(stage: Stage) -> None:
    """Every message of the dispatch topic once more, as after a group was rewound."""
    prefix = str(stage.settings.get("topic_prefix", "outrider"))
    kafka = {"bootstrap.servers": str(stage.settings["kafka_bootstrap_servers"]), "log_level": 0}
    topic = f"{prefix}.dispatch"
    requests = len(stage.receiver.requests)
    attempts = stage.value("select count(*) from outrider.delivery_attempt")
    old = read_to_end(kafka, topic, lambda message: message)
    producer = Producer(kafka)
    for message in old:
        partition = message.partition() or 0
        producer.produce(topic, message.value(), message.key(), partition=partition, headers=message.headers())
    producer.flush(30)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    group = Consumer({**kafka, "group.id": f"{prefix}.delivery", "enable.auto.commit": False})
    try:

        def is_read() -> bool:
            committed = {place.partition: max(place.offset, 0) for place in group.committed(places, timeout=30)}
            return all(committed[p.partition] >= group.get_watermark_offsets(p, timeout=30)[1] for p in places)

        stage.wait(is_read, "the worker has read every old message")
    finally:
        group.close()
    stage.prove(
        old
        and len(stage.receiver.requests) == requests
        and stage.value("select count(*) from outrider.delivery_attempt") == attempts,
        f"{len(old)} old dispatches that came after their success sent nothing",
    )


def _nothing_was_done_twice(stage: Stage) -> None:
    effects = [request.webhook_id for request in stage.receiver.effects()]
    stage.prove(
        len(effects)
        == len(set(effects))
        == stage.value("select count(*) from outrider.delivery where state = 'succeeded'"),
        "at the end each expiry was one effect",
    )


def _expire_one(stage: Stage, reservation_id: str) -> str:
    """A reservation whose time is over; the source tells of it. Its delivery's id."""
    stage.admin.execute(
        "insert into reservations.reservation values (%s, 1, 'held', clock_timestamp())", (reservation_id,)
    )
    event_id = str(stage.value("select reservations.event_id(%s, 1)", reservation_id))
    return delivery_identity(event_id, RECEIVER)


def _switch(stage: Stage, mode: str, *shards: int) -> None:
    only = [word for shard in shards for word in ("--shard", str(shard))]
    stage.outrider("source", "set", "reservations", "--mode", mode, *only, "--reason", "moving over")


def _compared(stage: Stage) -> dict[str, Any]:
    output = stage.outrider("source", "shadow", "reservations", "--grace-seconds", GRACE, "--json", check=False)
    found: dict[str, Any] = json.loads(output.splitlines()[0])
    return found


def _admitted(stage: Stage, group: str, *shards: int) -> int:
    """Events that this path has admitted, of all shards or of these."""
    login = str(psycopg.conninfo.conninfo_to_dict(stage.dsns[group])["user"])
    count = stage.value(
        "select count(*) from outrider.event e join reservations.reservation r "
        "on e.event_id = reservations.event_id(r.reservation_id, r.version) where e.admitted_by = %s "
        "and outrider.shard_of(r.reservation_id, reservations.shard_count()) = any (%s)",
        login,
        list(shards or range(4)),
    )
    return int(str(count))


def _wait_for_more(stage: Stage, group: str, *shards: int) -> None:
    goal = _admitted(stage, group, *shards) + MORE
    stage.wait(lambda: _admitted(stage, group, *shards) >= goal, f"the {group} admits in {shards}")


def _row(stage: Stage, delivery_id: str) -> Any:
    return stage.admin.execute("select * from outrider.delivery where delivery_id = %s", (delivery_id,)).fetchone()


def _is(stage: Stage, delivery_id: str, state: str) -> bool:
    return stage.value("select state from outrider.delivery where delivery_id = %s", delivery_id) == state


def _is_one_effect(stage: Stage, delivery_id: str) -> bool:
    requests = stage.receiver.of(delivery_id)
    return len(requests) >= 2 and sum(request.is_effect for request in requests) == 1


def _log(stage: Stage, delivery_id: str) -> list[dict[str, Any]]:
    cursor = stage.admin.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute(
        "select * from outrider.delivery_attempt where delivery_id = %s order by attempt_id", (delivery_id,)
    ).fetchall()


def _signal(process: ChildProcess, number: signal.Signals) -> None:
    os.kill(process.pid, number)
