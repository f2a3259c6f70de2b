"""The pipeline killed at each named point between an asset that pends and a success on record."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from examples.media.ground import PATIENT, RECONCILE, all_terminal, happens, reconcile, state
from examples.stage import Stage
from pipeline.demo.topic_view import read_to_end
from pipeline.stack.child_process import ChildProcess


def play_kills(stage: Stage) -> None:
    """Nothing runs before; afterwards all components do."""
    _killed_during_the_scan(stage)
    _killed_before_the_commit(stage)
    connector = _killed_after_the_outbox_commit(stage)
    _killed_after_the_publishing(stage, connector)
    stage.start("reconciler")
    worker = _killed_after_the_receiver_accepted(stage)
    _killed_before_success_is_recorded(stage, worker)


def _killed_during_the_scan(stage: Stage) -> None:
    delivery_id = happens(stage, "scan")
    with _locked(stage, "lock table media.publisher in access exclusive mode"):
        _begun_and_killed(stage, "claim_pending")
    _server_has_noticed(stage)
    stage.prove(
        _is_pending(stage, "scan") and stage.states() == {},
        "killed during the scan, the asset pends and nothing is admitted",
    )
    reconcile(stage)
    stage.prove(state(stage, delivery_id) == "enqueued", "and the next pass admits it")


def _killed_before_the_commit(stage: Stage) -> None:
    delivery_id = happens(stage, "commit")
    # A delivery refers to its destination, so that admission waits here with everything else done.
    with _locked(stage, f"select from outrider.destination where destination_id = '{PATIENT}' for update"):
        _begun_and_killed(stage, "admit_many")
    _server_has_noticed(stage)
    stage.prove(
        _is_pending(stage, "commit") and state(stage, delivery_id) is None,
        "killed before the commit, neither the mark nor the delivery is there",
    )
    reconcile(stage)
    stage.prove(state(stage, delivery_id) == "enqueued", "and the next pass makes both")


def _killed_after_the_outbox_commit(stage: Stage) -> ChildProcess:
    # No connector has run so far: what is committed waits in the outbox alone.
    connector = stage.start("connector")
    stage.wait(lambda: _published(stage) == 2, "the first connector publishes both")
    # Stopped, it cannot publish what is committed now; then it is killed.
    os.kill(connector.pid, signal.SIGSTOP)
    delivery_id = happens(stage, "outbox")
    reconcile(stage)
    stage.prove(
        state(stage, delivery_id) == "enqueued" and _published(stage) == 2,
        "killed after the outbox commit and before the publishing, the connector leaves a row that nobody has seen",
    )
    connector.kill()
    connector.start()
    stage.wait(lambda: _published(stage) == 3, "the new connector publishes it")
    stage.say("and the next one finds it there")
    return connector


def _killed_after_the_publishing(stage: Stage, connector: ChildProcess) -> None:
    connector.kill()
    connector.start()
    delivery_id = happens(stage, "publish")
    reconcile(stage)
    stage.wait(lambda: _published(stage) == 4, "the new connector publishes the next one")
    stage.prove(
        state(stage, delivery_id) == "enqueued",
        "killed after it had published, the connector repeats nothing and goes on",
    )


def _killed_after_the_receiver_accepted(stage: Stage) -> ChildProcess:
    accepted, worker = stage.kill_after_acceptance()
    worker.start()
    all_terminal(stage)
    stage.prove(
        _came_again(stage, accepted.webhook_id),
        "killed after the receiver accepted, the same id came again and was one effect",
    )
    return worker


def _killed_before_success_is_recorded(stage: Stage, worker: ChildProcess) -> None:
    row = "select from outrider.delivery where delivery_id = '{}' for update"
    holding: list[psycopg.Connection] = []

    def after(_: str) -> None:
        # The answer leaves when the row is held, so that its success cannot be written.
        if not holding:
            session = psycopg.connect(stage.admin_dsn)
            session.execute(row.format(delivery_id).encode())
            holding.append(session)

    delivery_id = happens(stage, "record")
    stage.receiver.after = after
    reconcile(stage)
    stage.wait(lambda: holding and _waits_for_lock(stage, "outrider worker"), "the worker wants to record the success")
    worker.kill()
    # With its session, as when a machine goes away: a server that is asked for a commit makes it, whoever is left to hear of it.
    stage.admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name = 'outrider worker' and wait_event_type = 'Lock'"
    )
    holding[0].close()
    worker.start()
    all_terminal(stage)
    stage.receiver.after = lambda destination_id: None
    stage.prove(
        _came_again(stage, delivery_id), "killed before success was recorded, the same id came again and was one effect"
    )
    effects = [request.webhook_id for request in stage.receiver.effects()]
    stage.prove(
        sorted(effects)
        == sorted(row[0] for row in stage.admin.execute("select delivery_id from outrider.delivery").fetchall()),
        "each of these ended with one terminal delivery and one effect",
    )


def _begun_and_killed(stage: Stage, statement: str) -> None:
    """A pass that is killed while this statement of it waits for a lock."""
    process: subprocess.Popen[str] = stage.begin(*RECONCILE, group="reconciler")
    try:
        stage.wait(lambda: _waits_for_lock(stage, "", statement), f"{statement} waits")
    finally:
        process.kill()
        process.communicate()


def _server_has_noticed(stage: Stage) -> None:
    """A session whose client was killed ends when it wants to answer."""
    sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = %s"
    stage.wait(lambda: stage.value(sessions, "outrider reconcile run") == 0, "the killed pass's session ends")


def _waits_for_lock(stage: Stage, application: str, statement: str = "") -> bool:
    return bool(
        stage.value(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
            "and starts_with(application_name, %s) and strpos(query, %s) > 0",
            application,
            statement,
        )
    )


@contextmanager
def _locked(stage: Stage, statement: str) -> Iterator[None]:
    """Hold what the statement locks while the block runs."""
    with psycopg.connect(stage.admin_dsn) as session:
        session.execute(statement.encode())
        yield
        session.rollback()


def _is_pending(stage: Stage, asset: str) -> bool:
    return stage.value("select announced_at is null from media.happening where asset = %s", asset) is True


def _came_again(stage: Stage, delivery_id: str) -> bool:
    requests = stage.receiver.of(delivery_id)
    is_same = len({request.body for request in requests}) == 1
    return len(requests) >= 2 and is_same and sum(request.is_effect for request in requests) == 1


def _published(stage: Stage) -> int:
    """Messages in the dispatch topic that a read_committed reader sees."""
    topic = f"{stage.settings.get('topic_prefix', 'outrider')}.dispatch"
    kafka = {"bootstrap.servers": stage.settings["kafka_bootstrap_servers"]}
    return len(read_to_end(kafka, topic, lambda message: message.offset()))
