"""The shipments' story: what the endpoint promises, under kills, a paused schedule, and a subscriber that is busy."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from examples.receiver import Answer
from examples.stage import Stage
from pipeline.core.ids import delivery_identity
from pipeline.stack.ports import free_ports

FOLDER: Final = Path(__file__).parent
SOURCES: Final = FOLDER / "sources"
SUBSCRIBERS: Final = ("warehouse", "customer:7", 'customer:"7"')
MINUTE: Final = [
    ("s-1", 1, "packed"),
    ("s-1:1", 1, "packed"),
    ('s-1",1,"', 1, "packed"),
    ("s-é", 2_000_000_000, "sent"),
]
"""What became known in one minute. With separators between the parts some of these would be one."""
GAP: Final = [(f"g-{number}", 1, "delivered") for number in range(5)]
BUSY_SECONDS: Final = 1


def play(stage: Stage) -> None:
    """Raises ProofError for what does not hold."""
    prepare(stage)
    with endpoint(stage) as caller:
        _the_same_minute_twice(stage, caller)
        stage.start("connector")
        stage.start("reconciler")
        _a_worker_is_killed(stage)
        _the_schedule_is_paused(stage, caller)
        _a_subscriber_is_busy(stage, caller)
        _another_clock_and_another_transport(stage, caller)


def prepare(stage: Stage) -> None:
    """Tables, rights and subscribers."""
    stage.make_schema(FOLDER / "schema.sql")
    application, reconciler = stage.login("application"), stage.login("reconciler")
    stage.admin.execute(
        sql.SQL(
            "grant usage on schema shipments to {application}, {reconciler};"
            "grant select on shipments.update, shipments.subscriber to {application}, {reconciler};"
            "grant insert, update on shipments.update to {application};"
            "grant execute on function shipments.claim_waiting to {reconciler}"
        ).format(application=application, reconciler=reconciler)
    )
    for name in SUBSCRIBERS:
        stage.add_destination(name, timeout_seconds=2)
    shipments = [shipment for shipment, _, _ in (*MINUTE, *GAP)]
    with stage.admin.cursor() as cursor:
        cursor.executemany(
            "insert into shipments.subscriber values (%s, %s)",
            [(shipment, name) for shipment in shipments for name in SUBSCRIBERS],
        )


class Caller:
    """Whoever calls the endpoint: a schedule, for each minute."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token

    def post(self, body: bytes, *, token: str | None = None) -> tuple[int, Any]:
        """(status, decoded answer); status 0 while nothing listens."""
        headers = {"Authorization": f"Bearer {token or self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/shipment-updates/enqueue", body, headers)  # noqa: S310 - http, ours
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError as error:
            return 0, str(error)

    def enqueue(self, shipment: str, version: int, status: str) -> int:
        answered, body = self.post(json.dumps({"shipment": shipment, "version": version, "status": status}).encode())
        if answered != 200:
            raise RuntimeError(f"the endpoint answered {answered}: {body}")
        return int(body["accepted"])


@contextmanager
def endpoint(stage: Stage) -> Iterator[Caller]:
    """The endpoint as a process under the application's login."""
    (port,) = free_ports(1)
    token = secrets.token_urlsafe(24)
    environment = {
        **os.environ,
        "SHIPMENTS_DSN": stage.dsns["application"],
        "SHIPMENTS_TOKEN": token,
        "SHIPMENTS_PORT": str(port),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.shipments.endpoint"],
        env=environment,
        cwd=FOLDER.parents[1],
        stdout=subprocess.DEVNULL,
    )
    caller = Caller(f"http://127.0.0.1:{port}", token)
    try:
        stage.wait(lambda: caller.post(b"{}")[0] == 422, "the endpoint listens")
        yield caller
    finally:
        process.terminate()
        process.wait(30)


def _the_same_minute_twice(stage: Stage, caller: Caller) -> None:
    first = [caller.enqueue(*update) for update in MINUTE]
    second = [caller.enqueue(*update) for update in MINUTE]
    stage.prove(first == [len(SUBSCRIBERS)] * len(MINUTE), "each update is accepted once for each subscriber")
    stage.prove(second == [0] * len(MINUTE), "the same minute again accepts nothing")
    expected = {delivery_identity(_event_id(stage, *update[:2]), name) for update in MINUTE for name in SUBSCRIBERS}
    found = {row[0] for row in stage.admin.execute("select delivery_id from outrider.delivery").fetchall()}
    stage.prove(
        found == expected and len(found) == len(MINUTE) * len(SUBSCRIBERS),
        "identities follow from shipment, version and subscriber, whatever characters these hold",
    )
    stage.prove(not stage.receiver.requests, "nobody was contacted before the answer")


def _a_worker_is_killed(stage: Stage) -> None:
    cut_off, _ = stage.kill_after_acceptance()
    stage.start("worker")
    _everything_delivered(stage)
    again = stage.receiver.of(cut_off.webhook_id)
    stage.prove(
        len(again) >= 2 and len({request.body for request in again}) == 1,
        "killed after the subscriber accepted, the same key and bytes came again",
    )
    _one_effect_each(stage, "and each update had one effect at each subscriber")


def _the_schedule_is_paused(stage: Stage, caller: Caller) -> None:
    with psycopg.connect(stage.dsns["application"], autocommit=True) as application, application.cursor() as cursor:
        cursor.executemany("insert into shipments.update (shipment, version, status) values (%s, %s, %s)", GAP)
    stage.outrider("source", "set", "shipments", "--mode", "live", "--reason", "reviewed")
    stage.wait(
        lambda: stage.value("select count(*) from shipments.update where announced_at is null") == 0,
        "the gap of the paused schedule is found",
    )
    _everything_delivered(stage)
    stage.prove(
        stage.value("select count(*) from outrider.event where event_id like 'shipment [\"g-%%'") == len(GAP),
        "with the schedule paused, what was on record was found and delivered",
    )
    late = [caller.enqueue(*update) for update in GAP]
    stage.prove(late == [0] * len(GAP), "the schedule's calls that come late accept nothing")
    _one_effect_each(stage, "and each of these had one effect, too")


def _a_subscriber_is_busy(stage: Stage, caller: Caller) -> None:
    update = ("s-1", 2, "sent")
    before = len(stage.receiver.requests)

    def answer(destination_id: str, repeat: int) -> Answer:
        if destination_id == "warehouse" and repeat == 0:
            return Answer(429, {"Retry-After": str(BUSY_SECONDS)}, applies=False)
        return Answer()

    stage.receiver.answer = answer
    caller.enqueue(*update)
    _everything_delivered(stage)
    asked = [request for request in stage.receiver.requests[before:] if request.destination_id == "warehouse"]
    stage.prove(
        len(asked) >= 2
        and asked[1].at - asked[0].at >= BUSY_SECONDS * 0.9
        and asked[0].webhook_id == asked[1].webhook_id,
        "429 with Retry-After made the worker wait, and come again with the same key",
    )
    stage.prove(
        stage.value("select count(*) from outrider.delivery where event_id = %s", _event_id(stage, *update[:2]))
        == len(SUBSCRIBERS),
        "and no new work came of it",
    )
    stage.receiver.answer = lambda destination_id, repeat: Answer()


def _another_clock_and_another_transport(stage: Stage, caller: Caller) -> None:
    before = stage.value("select count(*) from outrider.delivery")
    with psycopg.connect(stage.dsns["application"], autocommit=True) as application:
        rows = application.execute(
            "select a.created from shipments.update u, outrider.admit(shipments.event_id(u.shipment, u.version), "
            "'shipment.updated', convert_to(shipments.body(u.shipment, u.version, u.status), 'UTF8'), "
            "destinations => shipments.subscribers(u.shipment)) a"
        ).fetchall()
    # As if none had been announced: the reconciler's clock finds them all again, by a third transport.
    stage.admin.execute("update shipments.update set announced_at = null, recorded_at = recorded_at - interval '1 day'")
    stage.wait(
        lambda: stage.value("select count(*) from shipments.update where announced_at is null") == 0,
        "the reconciler has looked at every update again",
    )
    stage.prove(
        {created for (created,) in rows} == {False} and stage.value("select count(*) from outrider.delivery") == before,
        "by SQL, by HTTP and by the reconciler, at whatever time, an update is the same deliveries",
    )
    _one_effect_each(stage, "and nothing was applied twice")


def _everything_delivered(stage: Stage) -> None:
    stage.wait(lambda: stage.states().keys() == {"succeeded"}, "everything is delivered")


def _one_effect_each(stage: Stage, what: str) -> None:
    effects = [request.webhook_id for request in stage.receiver.effects()]
    stage.prove(
        len(effects)
        == len(set(effects))
        == stage.value("select count(*) from outrider.delivery where state = 'succeeded'"),
        what,
    )


def _event_id(stage: Stage, shipment: str, version: int) -> str:
    return str(stage.value("select shipments.event_id(%s, %s)", shipment, version))
