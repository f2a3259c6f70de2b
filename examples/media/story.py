"""The media story: killed at each point on the way, a release of thousands, publishers with quotas, and retention."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from examples.stage import ProofError, Stage
from pipeline.core.ids import delivery_identity
from pipeline.demo.topic_view import read_to_end
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.source_file import read_source
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import SourcePassResult, Waking
from pipeline.stack.child_process import ChildProcess

FOLDER: Final = Path(__file__).parent
SOURCES: Final = FOLDER / "sources"
ASSETS: Final = 8_000
PUBLISHERS: Final = tuple(f"publisher-{number}" for number in range(8))
RATE_PER_SECOND: Final = 20.0
BURST: Final = 30
PATIENT: Final = "patient"
"""A publisher without a narrow quota, for what is killed."""
WATCH_SECONDS: Final = 1.0
MEMORY_MB_MAX: Final = 48
CLOCK_SECONDS: Final = 1e-5
"""What a float keeps of seconds since 1970."""
RECONCILE: Final = ("reconcile", "run", "media", "--json")

WITNESS: Final = """
create table media.start (destination_id text not null, at double precision not null);
create function media.note_start() returns trigger language plpgsql security definer as $$
begin
  insert into media.start values (new.destination_id, extract(epoch from new.leased_at));
  return null;
end $$;
create trigger note_start after update on outrider.delivery for each row
  when (new.state = 'leased' and old.state <> 'leased') execute function media.note_start();
"""
"""Each start by the clock that grants it, for the proof and for nothing else."""


def play(stage: Stage, *, assets: int = ASSETS) -> None:
    """Raises ProofError for what does not hold."""
    prepare(stage)
    _killed_during_the_scan(stage)
    _killed_before_the_commit(stage)
    connector = _nothing_runs_after_the_outbox_commit(stage)
    _killed_after_the_publishing(stage, connector)
    stage.start("reconciler")
    worker = _killed_after_the_receiver_accepted(stage)
    _killed_before_success_is_recorded(stage, worker)
    _retention_keeps_the_identity(stage)
    _a_release(stage, assets)


def prepare(stage: Stage) -> None:
    """Tables, rights and publishers; the source is live."""
    stage.make_schema(FOLDER / "schema.sql")
    stage.admin.execute(WITNESS)
    application, reconciler = stage.login("application"), stage.login("reconciler")
    stage.admin.execute(
        sql.SQL(
            "grant usage on schema media to {application}, {reconciler};"
            "grant select on all tables in schema media to {application}, {reconciler};"
            "grant insert on media.happening to {application};"
            "grant execute on function media.claim_pending to {reconciler}"
        ).format(application=application, reconciler=reconciler)
    )
    stage.add_destination(PATIENT, timeout_seconds=2)
    for name in PUBLISHERS:
        stage.add_destination(
            name, start_rate_per_second=RATE_PER_SECOND, burst=BURST, concurrency=64, timeout_seconds=10
        )
    with stage.admin.cursor() as cursor:
        cursor.executemany(
            "insert into media.publisher values (%s, %s)", [(name, name) for name in (PATIENT, *PUBLISHERS)]
        )
    stage.outrider("source", "set", "media", "--mode", "live", "--reason", "reviewed")


def _killed_during_the_scan(stage: Stage) -> None:
    delivery_id = _happens(stage, "scan")
    with _locked(stage, "lock table media.publisher in access exclusive mode"):
        _begun_and_killed(stage, "claim_pending")
    _server_has_noticed(stage)
    stage.prove(
        _is_pending(stage, "scan") and stage.states() == {},
        "killed during the scan, the asset pends and nothing is admitted",
    )
    _reconcile(stage)
    stage.prove(_state(stage, delivery_id) == "enqueued", "and the next pass admits it")


def _killed_before_the_commit(stage: Stage) -> None:
    delivery_id = _happens(stage, "commit")
    # A delivery refers to its destination, so that admission waits here with everything else done.
    with _locked(stage, f"select from outrider.destination where destination_id = '{PATIENT}' for update"):
        _begun_and_killed(stage, "admit_many")
    _server_has_noticed(stage)
    stage.prove(
        _is_pending(stage, "commit") and _state(stage, delivery_id) is None,
        "killed before the commit, neither the mark nor the delivery is there",
    )
    _reconcile(stage)
    stage.prove(_state(stage, delivery_id) == "enqueued", "and the next pass makes both")


def _nothing_runs_after_the_outbox_commit(stage: Stage) -> ChildProcess:
    # No connector has run so far: what is committed waits in the outbox alone.
    connector = stage.start("connector")
    stage.wait(lambda: _published(stage) == 2, "the connector that starts afterwards publishes both")
    stage.say("with nothing running after the outbox commit, the rows were found there and published")
    return connector


def _killed_after_the_publishing(stage: Stage, connector: ChildProcess) -> None:
    connector.kill()
    connector.start()
    delivery_id = _happens(stage, "publish")
    _reconcile(stage)
    stage.wait(lambda: _published(stage) == 3, "the new connector publishes the next one")
    stage.prove(
        _state(stage, delivery_id) == "enqueued",
        "killed after it had published, the connector repeats nothing and goes on",
    )


def _killed_after_the_receiver_accepted(stage: Stage) -> ChildProcess:
    accepted, worker = stage.kill_after_acceptance()
    worker.start()
    _all_terminal(stage)
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

    delivery_id = _happens(stage, "record")
    stage.receiver.after = after
    _reconcile(stage)
    stage.wait(lambda: holding and _waits_for_lock(stage, "outrider worker"), "the worker wants to record the success")
    worker.kill()
    # With its session, as when a machine goes away: a server that is asked for a commit makes it, whoever is left to hear of it.
    stage.admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name = 'outrider worker' and wait_event_type = 'Lock'"
    )
    holding[0].close()
    worker.start()
    _all_terminal(stage)
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


def _retention_keeps_the_identity(stage: Stage) -> None:
    documents = stage.admin.execute(
        "select media.event_id(publisher_id, asset, kind, version), document from media.happening order by 1"
    ).fetchall()
    moved = stage.value("select media.move_out(clock_timestamp())")
    before = stage.value("select count(*) from outrider.delivery")
    repeated: set[object] = set()
    with psycopg.connect(stage.dsns["application"], autocommit=True) as application:
        for event_id, document in documents:
            again = "select created from outrider.admit(%s, 'media.transcoded', convert_to(%s, 'UTF8'), destinations => array[%s])"
            repeated.update(application.execute(again, (event_id, document, PATIENT)).fetchall())
            try:
                application.execute(again, (event_id, "other", PATIENT))
            except psycopg.Error as error:
                repeated.add(error.sqlstate)
    stage.prove(
        moved == len(documents)
        and stage.value("select count(*) from media.happening where document is not null") == 0
        and repeated == {(False,), "OU001"}
        and stage.value("select count(*) from outrider.delivery") == before,
        "with the documents moved out, the same identity makes nothing new, and other bytes under it are refused",
    )


def _a_release(stage: Stage, assets: int) -> None:
    small_mb = _peak_mb(_release(stage, 8, "warm"))
    passes = _release(stage, assets, "release", passes=2)
    peak_mb = _peak_mb(passes)
    admitted = [found["admitted"] for found, _ in passes]
    stage.prove(
        sum(admitted) == assets and sum(found["existing"] for found, _ in passes) == 0,
        f"two reconcilers at once divided {assets} assets ({' and '.join(map(str, admitted))})",
    )
    stage.prove(
        peak_mb - small_mb < MEMORY_MB_MAX,
        f"their memory had no spike ({peak_mb:.0f} MB at the most, {small_mb:.0f} MB for eight assets)",
    )
    expected = {
        delivery_identity(event_id, publisher)
        for event_id, publisher in stage.admin.execute(
            "select media.event_id(publisher_id, asset, kind, version), publisher_id from media.happening"
        ).fetchall()
    }
    found = {row[0] for row in stage.admin.execute("select delivery_id from outrider.delivery").fetchall()}
    stage.prove(found == expected, "each asset has its one delivery")
    enough = BURST + WATCH_SECONDS * RATE_PER_SECOND
    stage.wait(
        lambda: min(len(_starts(stage, name)) for name in PUBLISHERS) >= enough,
        "publishers have been at it for a while",
    )
    excess = max(_worst_excess(_starts(stage, name)) for name in PUBLISHERS)
    stage.prove(
        excess <= 0,
        f"no publisher was asked for more than {BURST} and {RATE_PER_SECOND:g} a second, in any window",
    )
    stage.prove(
        stage.value("select count(*) from outrider.delivery where state not in ('succeeded', 'dead') and "
                    "num_nonnulls(next_attempt_at, lost_after, lease_until) = 0") == 0,
        "what is not delivered yet has a time at which it is looked at",
    )  # fmt: skip


def _release(stage: Stage, assets: int, name: str, *, passes: int = 1) -> list[tuple[dict[str, Any], float]]:
    """That many assets in one commit, and passes at once; each one's answer and its peak of memory."""
    stage.admin.execute(
        "insert into media.happening (publisher_id, asset, kind, version, document) "
        "select 'publisher-' || n %% 8, %s || n, case n %% 2 when 0 then 'transcoded' else 'rights_changed' end, 1, "
        "jsonb_build_object('asset', n, 'note', repeat('x', 1000))::text from generate_series(1, %s) n",
        (f"{name}-", assets),
    )
    processes = [stage.begin(*RECONCILE, group="reconciler") for _ in range(passes)]
    peaks = [0.0] * passes
    # Little is written before the end, so that nobody waits for its reader.
    while any(process.poll() is None for process in processes):
        peaks = [max(peak, _resident_mb(process.pid)) for peak, process in zip(peaks, processes, strict=True)]
        time.sleep(0.02)
    return [(json.loads(process.communicate()[0]), peak) for process, peak in zip(processes, peaks, strict=True)]


def _peak_mb(passes: list[tuple[dict[str, Any], float]]) -> float:
    return max(peak for _, peak in passes)


def _resident_mb(pid: int) -> float:
    """The highest so far; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0][1]) / 1024 if lines else 0.0


def _starts(stage: Stage, name: str) -> list[float]:
    return [
        row[0]
        for row in stage.admin.execute(
            "select at from media.start where destination_id = %s order by at", (name,)
        ).fetchall()
    ]


def _worst_excess(starts: list[float]) -> float:
    """Starts above ``burst + rate * t``, in the window where that is most; at most 0 where the limit holds."""
    worst, lowest = float("-inf"), float("inf")
    for number, at in enumerate(starts):
        lowest = min(lowest, number - RATE_PER_SECOND * at)
        allowed = BURST + RATE_PER_SECOND * CLOCK_SECONDS
        worst = max(worst, number + 1 - RATE_PER_SECOND * at - lowest - allowed)
    return worst


def _happens(stage: Stage, asset: str) -> str:
    """Something happens to an asset of the patient publisher; the id that its delivery will have."""
    with psycopg.connect(stage.dsns["application"], autocommit=True) as application:
        application.execute(
            "insert into media.happening (publisher_id, asset, kind, version, document) "
            "values (%s, %s, 'transcoded', 1, %s)",
            (PATIENT, asset, json.dumps({"asset": asset})),
        )
    event_id = str(stage.value("select media.event_id(%s, %s, 'transcoded', 1)", PATIENT, asset))
    return delivery_identity(event_id, PATIENT)


def _reconcile(stage: Stage) -> None:
    """A pass on demand, as the command makes it."""

    async def run() -> SourcePassResult:
        async with open_pool(stage.dsns["reconciler"], 2, "example") as pool:
            return await run_source_pass(pool, read_source(SOURCES / "media.toml"), Waking(woken_by="operator"))

    result = asyncio.run(run())
    if result.error is not None or not result.is_complete:
        raise ProofError(f"a pass over the source ended early: {result}")


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


def _state(stage: Stage, delivery_id: str) -> object:
    return stage.value("select state from outrider.delivery where delivery_id = %s", delivery_id)


def _all_terminal(stage: Stage) -> None:
    stage.wait(lambda: stage.states().keys() == {"succeeded"}, "everything is delivered")


def _came_again(stage: Stage, delivery_id: str) -> bool:
    requests = stage.receiver.of(delivery_id)
    is_same = len({request.body for request in requests}) == 1
    return len(requests) >= 2 and is_same and sum(request.is_effect for request in requests) == 1


def _published(stage: Stage) -> int:
    """Messages in the dispatch topic that a read_committed reader sees."""
    topic = f"{stage.settings.get('topic_prefix', 'outrider')}.dispatch"
    kafka = {"bootstrap.servers": stage.settings["kafka_bootstrap_servers"]}
    return len(read_to_end(kafka, topic, lambda message: message.offset()))
