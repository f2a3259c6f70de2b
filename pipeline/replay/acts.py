"""What an operator does to a run from any terminal: start it, pause it, let it go on, cancel it. Each is on the record."""

from __future__ import annotations

from uuid import UUID

import msgspec
import psycopg

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.operator import Act, record_run
from pipeline.ledger.replay import Phase, Stretch, Wish
from pipeline.ledger.runs import BusyError, alone, open_run
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.replay.driving import KIND, end_run
from pipeline.replay.errors import ReplayError
from pipeline.replay.id_list import check_unchanged, read_ids
from pipeline.replay.plan import Plan
from pipeline.replay.progress import Progress
from pipeline.settings import Settings

FORGET_ROWS = 5_000


def start(settings: Settings, ledger: psycopg.Connection, plan: Plan, act: Act) -> UUID:
    """Commit the run with all that it needs to be driven, here or by another process. Raises ReplayError."""
    if plan.cluster_id is not None and KafkaGroups(settings.kafka).cluster_id() != plan.cluster_id:
        raise ReplayError(f"the plan is for Kafka cluster {plan.cluster_id}, and this is another: plan again")
    ids = None if plan.id_list is None else read_ids(check_unchanged(plan.id_list))
    parameters = {
        "source": plan.origin,
        "mode": plan.choice.mode,
        "rate_per_second": plan.rate_per_second,
        "share": plan.share,
        "planned": plan.replayed,
    }
    stretches = (
        Stretch(topic=r.topic, partition=r.partition, begin_offset=r.begin, end_offset=r.end, removed=r.removed)
        for r in plan.ranges
    )
    phase: Phase = "evidence" if plan.source == "rebuild" else "select"
    with ledger.transaction():
        run_id = open_run(ledger, KIND, act, parameters=parameters, before=msgspec.to_builtins(plan), after=None)
        ledger_replay.begin_replay(ledger, run_id, plan.source, phase=phase, stretches=stretches, delivery_ids=ids)
    return run_id


def wish(ledger: psycopg.Connection, run_id: UUID, wanted: Wish, act: Act) -> bool:
    """Ask for it, on the record; whoever drives the run sees it within a second. False where it is so already.

    Raises ReplayError where the run is over, or not there.
    """
    found = ledger_replay.standing(ledger, run_id)
    if found is None:
        raise ReplayError(f"no replay {run_id}: see outrider runs list --kind {KIND}")
    if found.phase == "over":
        raise ReplayError(f"run {run_id} is over: outrider replay status {run_id}")
    if found.wish == "cancel":
        raise ReplayError(f"run {run_id} is being cancelled")
    with ledger.transaction():
        if not ledger_replay.wish(ledger, run_id, wanted):
            return False
        verb = "resume" if wanted == "run" else wanted
        record_run(ledger, f"{KIND}.{verb}", act, {"run": str(run_id)})
    return True


def forget(ledger: psycopg.Connection, run_id: UUID, act: Act) -> int:
    """Delete what a run that is over keeps by id; its row with the counts stays. How many items. Raises ReplayError."""
    found = ledger_replay.standing(ledger, run_id)
    if found is None or found.phase != "over":
        raise ReplayError(f"run {run_id} is not over, or no replay: outrider replay status {run_id}")
    forgotten = 0
    while rows := ledger_replay.forget_items(ledger, run_id, FORGET_ROWS):
        forgotten += rows
    with ledger.transaction():
        ledger_replay.forget_rest(ledger, run_id)
        record_run(ledger, f"{KIND}.forget", act, {"run": str(run_id), "forgotten": forgotten})
    return forgotten


def end_if_nobody_drives(ledger: psycopg.Connection, run_id: UUID) -> bool:
    """After a cancel: whether the run could be ended here, because no process is at it."""
    try:
        with alone(ledger, KIND, str(run_id)):
            found = ledger_replay.standing(ledger, run_id)
            if found is not None and found.phase != "over":
                end_run(ledger, run_id, Progress.of(ledger, run_id), cancelled=True)
            return True
    except BusyError:
        return False
