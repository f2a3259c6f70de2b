"""Running a plan of `outrider replay`, and steering a run from any terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from uuid import UUID

import psycopg
import typer

from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_json
from pipeline.cli.replay_progress import Line, errors, say
from pipeline.cli.replay_text import print_ended, print_report, print_status, status_of
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.replay import Wish
from pipeline.ledger.runs import BusyError
from pipeline.offsets.errors import OffsetsError
from pipeline.replay import acts
from pipeline.replay.driving import Driver, Ended, run_of
from pipeline.replay.errors import ReplayError
from pipeline.replay.plan import read_plan
from pipeline.settings import Settings, load_settings

RunId = Annotated[str, typer.Argument(help="Id of the run; see `outrider runs list --kind replay`.")]


def run(
    plan: Annotated[Path, typer.Argument(help="File that `replay plan` wrote.", dir_okay=False)],
    *,
    reason: Reason,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Do what a plan says, recorded as a run. Ctrl-C, or a kill, leaves a run that `replay resume` goes on with."""
    settings = load_settings()
    with errors("nothing was started; the same command begins anew"):
        read = read_plan(plan)
        with operator_connection(settings.postgres_conninfo) as connection:
            run_id = acts.start(settings, connection, read, act(operator, reason))
            say(f"run {run_id}; from another terminal: outrider replay status|pause|cancel {run_id}")
            _drive(settings, connection, run_id, as_json=as_json)


def resume(run: RunId, *, reason: Reason, operator: Operator = None, as_json: AsJson = False) -> None:
    """Let a paused run go on, and drive it from here if no process does, as after a crash."""
    settings, run_id = load_settings(), _run_id(run)
    with errors("the run stays as it is"), operator_connection(settings.postgres_conninfo) as connection:
        run_of(connection, run_id)
        acts.wish(connection, run_id, "run", act(operator, reason))
        try:
            _drive(settings, connection, run_id, as_json=as_json)
        except BusyError:
            print(f"run {run_id} goes on, in the process that drives it: outrider replay status {run_id}")


def pause(run: RunId, *, reason: Reason, operator: Operator = None) -> None:
    """Dispatch nothing more until it is resumed. What is in Kafka already goes its way."""
    _wish(run, "pause", reason, operator)


def cancel(run: RunId, *, reason: Reason, operator: Operator = None) -> None:
    """End a run. What it has dispatched goes its way; the rest stays as it is."""
    run_id = _wish(run, "cancel", reason, operator)
    with operator_connection(load_settings().postgres_conninfo) as connection:
        if not acts.end_if_nobody_drives(connection, run_id):
            print("the process that drives it ends it within a second")


def status(run: RunId, *, as_json: AsJson = False) -> None:
    """How far a run is, who drives it, what it waits for."""
    with errors("nothing was changed"), operator_connection(load_settings().postgres_conninfo) as connection:
        found = status_of(connection, _run_id(run))
    if as_json:
        print_json(found)
    else:
        print_status(found)


def report(
    run: RunId,
    *,
    out: Annotated[Path | None, typer.Option(help="Write it there, one JSON object a line.", dir_okay=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Every delivery that the run came upon, by id: replayed or skipped and why, and what has become of it since."""
    with errors("nothing was changed"), operator_connection(load_settings().postgres_conninfo) as connection:
        run_id = _run_id(run)
        run_of(connection, run_id)
        print_report(connection, run_id, out, as_json=as_json)


def forget(run: RunId, *, reason: Reason, operator: Operator = None) -> None:
    """Delete the report by id of a run that is over. Its counts stay."""
    with errors("the same command goes on"), operator_connection(load_settings().postgres_conninfo) as connection:
        forgotten = acts.forget(connection, _run_id(run), act(operator, reason))
    print(f"forgotten {forgotten} deliveries of the report")


def _drive(settings: Settings, connection: psycopg.Connection, run_id: UUID, *, as_json: bool) -> None:
    _, plan = run_of(connection, run_id)
    line = Line()
    try:
        ended = Driver(settings, connection, run_id, plan, say=say, report=line.run).drive()
    except KeyboardInterrupt:
        line.end()
        raise CommandError(
            f"interrupted: what is dispatched goes its way, and nothing is lost; outrider replay resume {run_id} "
            f"goes on, outrider replay cancel {run_id} ends it"
        ) from None
    except (OffsetsError, ReplayError, psycopg.OperationalError) as error:
        line.end()
        raise CommandError(f"{' '.join(str(error).split())}; outrider replay resume {run_id} goes on") from None
    line.end()
    _show_ended(ended, as_json=as_json)


def _show_ended(ended: Ended, *, as_json: bool) -> None:
    if as_json:
        raised = {"raised": ended.raised} if ended.raised else {}
        print_json({"run": ended.run_id, "outcome": ended.outcome, **ended.progress.counts(), **raised})
    else:
        print_ended(ended)
    if ended.outcome != "done":
        raise typer.Exit(1)


def _wish(run: str, wanted: Wish, reason: str, operator: str | None) -> UUID:
    run_id = _run_id(run)
    with errors("the run stays as it is"), operator_connection(load_settings().postgres_conninfo) as connection:
        is_new = acts.wish(connection, run_id, wanted, act(operator, reason))
    done = {"pause": "paused", "cancel": "cancelled", "run": "resumed"}[wanted]
    print(f"run {run_id} is {done}" if is_new else f"run {run_id} is {done} already")
    return run_id


def _run_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"{text!r} is no run's id: see outrider runs list --kind replay") from None
