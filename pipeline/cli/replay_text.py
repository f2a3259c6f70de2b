"""Plans, status and reports of `outrider replay`, for people and programs."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.ledger import replay as ledger_replay
from pipeline.replay.driving import Ended, run_of
from pipeline.replay.plan import AttemptIds, IdList, Plan
from pipeline.replay.progress import DONE, Progress

WAITED_FOR_MAX = 20

WOULD_BE = {
    "replay": "replayed",
    "rebuild_due": "rebuilt, due",
    "rebuild_succeeded": "rebuilt, succeeded",
    "rebuild_dead": "rebuilt, dead",
    "advance": "brought up to date",
}
WHY = {
    "succeeded": "succeeded already",
    "dead": "given up (--mode failed takes them)",
    "enqueued": "on their way",
    "pending": "waiting for their first attempt (--mode missing takes them)",
    "retrying": "waiting for their next attempt (--mode failed takes them)",
    "in_flight": "in flight at this moment",
    "cancelled": "cancelled by an operator (--outcome cancelled takes them)",
    "gone_on": "dispatched otherwise since they were selected",
    "destination_disabled": "of a destination that is disabled",
    "incomplete": "with messages that do not name event, type and content type",
    "foreign": "with ids that are not those of their content",
    "payload_removed": "of events whose payload retention has removed",
    "no_destination": "of a destination that is not there: add it first",
    "other_event": "of an event that the ledger has with another content",
}


def print_plan(plan: Plan) -> None:
    print_fields(
        [
            ("source", plan.origin),
            ("mode", plan.choice.mode),
            *((name, value) for name, value in _filters(plan)),
            ("would restore" if plan.source == "rebuild" else "would replay", plan.replayed),
            ("at", f"{plan.rate_per_second:g} a second, at most {plan.share:.0%} of what a destination starts"),
            ("takes", _duration(plan)),
        ]
    )
    if plan.counts:
        print()
        print_columns(
            ("DESTINATION", "STATE", "ADMITTED", "DELIVERIES", "WOULD BE"),
            [(c.destination_id, c.state, c.age, c.deliveries, WOULD_BE.get(c.verdict, "left")) for c in plan.counts],
        )
    for reason, deliveries in plan.left.items():
        print(f"left: {deliveries} {WHY.get(reason, reason)}")
    _print_read(plan)
    if plan.sample:
        print("\nthe oldest of them")
        print_columns(
            ("DELIVERY", "DESTINATION", "STATE", "LAST OUTCOME", "ADMITTED"),
            [(s.delivery_id, s.destination_id, s.state, s.last_outcome, s.created_at) for s in plan.sample],
        )


def _print_read(plan: Plan) -> None:
    if plan.read is not None:
        print(f"\nread: {plan.read.messages} messages")
        if plan.read.broken:
            print(f"{plan.read.broken} of them are no dispatches; the run puts them into quarantine")
        if plan.read.foreign:
            print(
                f"{plan.read.foreign} of them are of no delivery in the ledger; the run puts them into quarantine, "
                "and after a restore outrider replay rebuild brings their deliveries back"
            )
        if plan.read.removed:
            print(f"RETENTION HAS REMOVED {plan.read.removed} offsets of the range; what lay there is not replayed")
    if isinstance(plan.attempt_ids, AttemptIds):
        given, proven = plan.attempt_ids.given, plan.attempt_ids.proven
        print(
            f"ATTEMPTS are numbered up to {given} in the ledger and to {proven} in the topic: the run goes on behind that"
        )
    for part in plan.ranges:
        if part.note is not None:
            print(f"{part.topic} partition {part.partition}: {part.note}")


def _filters(plan: Plan) -> list[tuple[str, object]]:
    choice = plan.choice
    listed = None if plan.id_list is None else _listed(plan.id_list)
    pairs: list[tuple[str, object]] = [
        ("destinations", choice.destinations),
        ("event types", choice.event_types),
        ("states", choice.states),
        ("outcomes", choice.outcomes),
        ("admitted since", choice.admitted_since),
        ("admitted until", choice.admitted_until),
        ("listed", listed),
    ]
    return [(n, ", ".join(v) if isinstance(v, tuple) else v) for n, v in pairs if v is not None]


def _listed(ids: IdList) -> str:
    unknown = f", {ids.unknown} of them of no delivery here" if ids.unknown else ""
    return f"{ids.ids} ids of {ids.path}{unknown}"


def _duration(plan: Plan) -> str:
    text = str(timedelta(seconds=max(1, round(plan.expected_seconds)))) if plan.replayed else "no time"
    return text if plan.slowest_destination is None else f"{text}, by the rate of {plan.slowest_destination}"


def progress_line(progress: Progress) -> str:
    parts = [f"replayed {progress.done}", f"waiting {progress.waiting}", f"skipped {sum(progress.skipped.values())}"]
    return ", ".join(parts)


def print_ended(ended: Ended) -> None:
    progress = ended.progress
    done = ", ".join(f"{verdict} {progress.items[verdict]}" for verdict in DONE if verdict in progress.items)
    print(f"run {ended.run_id} is {ended.outcome}: {done or 'nothing was to be done'}")
    for reason, count in sorted(progress.skipped.items()):
        print(f"skipped {count}: {WHY.get(reason, reason)}")
    for raised in ended.raised:
        print(f"{raised['sequence']} goes on behind {raised['raised_to']}, it was at {raised['was']}")
    if progress.waiting:
        print(f"left {progress.waiting} as they are")
    if progress.refused:
        print(f"put {progress.refused} messages into quarantine: outrider quarantine list --kind message")
    if progress.removed:
        print(f"RETENTION HAS REMOVED {progress.removed} offsets of the range; what lay there is not replayed")
    print(f"by id, with what has become of them: outrider replay report {ended.run_id}")


def status_of(connection: psycopg.Connection, run_id: UUID) -> dict[str, Any]:
    """Raises ReplayError."""
    run, plan = run_of(connection, run_id)
    found = ledger_replay.standing(connection, run_id)
    if found is None:
        raise CommandError(f"run {run_id} has lost its record")
    progress = Progress.of(connection, run_id)
    outcome = "cancelled" if run.error == "cancelled" else run.outcome
    state = (
        outcome if found.phase == "over" else {"run": "running", "pause": "paused", "cancel": "cancelling"}[found.wish]
    )
    if state == "running" and found.driver is None:
        state = "left: outrider replay resume drives it on"
    return {
        "run": run_id,
        "state": state,
        "phase": found.phase,
        "driver": found.driver,
        "driver_seen_seconds_ago": None
        if found.driver is None or found.driver_seen_at is None
        else round((found.seen_at - found.driver_seen_at).total_seconds(), 1),
        "operator": run.operator,
        "reason": run.reason,
        "source": plan.origin,
        "mode": plan.choice.mode,
        "planned": plan.replayed,
        "rate_per_second": plan.rate_per_second,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "counts": progress.counts(),
        "raised": run.after or [],
        "offsets_read": progress.offsets_read,
        "offsets": progress.offsets,
        "waits_for": []
        if found.phase == "over"
        else [
            {"destination_id": destination_id, "hold": hold}
            for destination_id, hold in ledger_replay.waits_for(connection, run_id, WAITED_FOR_MAX)
        ],
    }


def print_status(status: dict[str, Any]) -> None:
    print_fields(
        [
            (name.replace("_", " "), value)
            for name, value in status.items()
            if name not in ("counts", "waits_for", "raised")
        ]
    )
    print_fields([(f"count {name}", value) for name, value in status["counts"].items()])
    print_fields([(row["sequence"], f"from {row['was']} to {row['raised_to']}") for row in status["raised"]])
    for row in status["waits_for"]:
        print(f"waits for {visible(row['destination_id'])}: {row['hold'] or 'its turn'}")


def print_report(connection: psycopg.Connection, run_id: UUID, out: Path | None, *, as_json: bool) -> None:
    """Row by row as the ledger gives it. Raises CommandError where the file cannot be written."""
    rows = ledger_replay.report(connection, run_id)
    if out is not None:
        written = 0
        try:
            with out.open("x", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(row) + "\n")
                    written += 1
        except OSError as error:
            raise CommandError(f"{out} cannot be written: {error.strerror}") from None
        print(f"{written} deliveries in {out}", file=sys.stderr)
        return
    for row in rows:
        if as_json:
            print_json(row)
        else:
            print(
                "  ".join(visible(row[name]) for name in ("delivery_id", "destination_id", "result", "outcome", "why"))
            )
