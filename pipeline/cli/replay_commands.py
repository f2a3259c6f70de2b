"""``outrider replay …``: count, look at and run replays, and steer one from any terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args
from uuid import UUID

import msgspec
import psycopg
import typer

from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_json
from pipeline.cli.replay_text import print_ended, print_plan, print_report, print_status, progress_line, status_of
from pipeline.core.lifecycle import State
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.replay import Choice, Mode, Source, Wish
from pipeline.ledger.runs import BusyError
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.targets import parse_duration, parse_moment
from pipeline.replay import acts
from pipeline.replay.driving import Driver, Ended, run_of
from pipeline.replay.errors import ReplayError
from pipeline.replay.plan import Plan, read_plan, write_plan
from pipeline.replay.planning import PlanRequest, make_plan
from pipeline.replay.progress import Progress
from pipeline.replay.ranges import ByTime, Wanted, parse_offsets
from pipeline.replay.rebuild_planning import RebuildTopics, make_rebuild_plan
from pipeline.settings import Settings, load_settings
from topics.declarations import ATTEMPTS, DISPATCH

PROGRESS_SECONDS = 1.0
READER_GROUP = "replay.plan"

RunId = Annotated[str, typer.Argument(help="Id of the run; see `outrider runs list --kind replay`.")]
Out = Annotated[Path, typer.Option(help="The plan file to write.", dir_okay=False)]
Rate = Annotated[float, typer.Option(min=0.001, max=1_000_000, help="Deliveries a second that the run dispatches.")]
Share = Annotated[
    float, typer.Option(min=0.01, max=1.0, help="Part of what a destination can start that the run takes at most.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Dispatch deliveries again: plan, run, and steer a run.")
    for command in (plan, rebuild, run, resume, pause, cancel, status, report, forget):
        group.command(command.__name__)(command)
    app.add_typer(group, name="replay")


def plan(
    *,
    out: Out,
    topic: Annotated[bool, typer.Option("--topic", help="Source: messages of the dispatch topic.")] = False,
    ledger: Annotated[bool, typer.Option("--ledger", help="Source: deliveries of the ledger.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="Source: dead letters, deliveries that were given up.")] = False,
    since: Annotated[
        str | None, typer.Option(help="Of a topic: messages from then on, as 2026-11-30T18:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Of a topic: messages before then.")] = None,
    last: Annotated[str | None, typer.Option(help="Of a topic: messages of so long, as 6h or 30m.")] = None,
    offsets: Annotated[
        list[str] | None, typer.Option(help="Of a topic: PARTITION:FROM-TO, as 0:1000-2000 or 1:500-; may be repeated.")
    ] = None,
    destination: Annotated[list[str] | None, typer.Option(help="Only of this destination; may be repeated.")] = None,
    event_type: Annotated[
        list[str] | None, typer.Option(help="Only of this type, or of a family as 'media.*'; may be repeated.")
    ] = None,
    state: Annotated[list[State] | None, typer.Option(help="Only in this state now; may be repeated.")] = None,
    outcome: Annotated[
        list[str] | None, typer.Option(help="Only those whose last attempt ended so; may be repeated.")
    ] = None,
    admitted_since: Annotated[str | None, typer.Option(help="Only those admitted from then on.")] = None,
    admitted_until: Annotated[str | None, typer.Option(help="Only those admitted before then.")] = None,
    ids_from: Annotated[
        Path | None, typer.Option(help="Only those that this file lists, one id a line.", dir_okay=False)
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="missing: never attempted, or never claimed; failed: given up, or waiting after an attempt; all: those "
            "that succeeded too, with --force. Default: missing, of --dead failed."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --mode all: receivers see again what succeeded.")
    ] = False,
    rate: Rate = 100.0,
    share: Share = 0.5,
    as_json: AsJson = False,
) -> None:
    """Count exactly what a run would replay, by destination, state and age, and write the plan. Changes nothing."""
    settings = load_settings()
    source = _source(topic=topic, ledger=ledger, dead=dead)
    choice = Choice(
        mode=_mode(mode, source, force=force),
        destinations=_values(destination),
        event_types=_values(event_type),
        states=_values([str(value) for value in state or ()]),
        outcomes=_values(outcome),
        admitted_since=_moment(admitted_since, "--admitted-since"),
        admitted_until=_moment(admitted_until, "--admitted-until"),
    )
    with _errors("no plan was written; the same command begins anew"):
        request = PlanRequest(
            source=source,
            wanted=_wanted(source, since=since, until=until, last=last, offsets=offsets),
            choice=choice,
            ids_from=ids_from,
            rate_per_second=rate,
            share=share,
        )
        with operator_connection(settings.postgres_conninfo) as connection:
            made = make_plan(
                settings.kafka,
                connection,
                request,
                topic=settings.name(DISPATCH),
                reader_group=settings.name(READER_GROUP),
                progress=_Line().offsets,
            )
        write_plan(made, out)
    _show_plan(made, out, as_json=as_json)


def rebuild(
    *,
    out: Out,
    since: Annotated[str | None, typer.Option(help="Messages from then on; without it, all that there are.")] = None,
    until: Annotated[str | None, typer.Option(help="Messages before then.")] = None,
    last: Annotated[str | None, typer.Option(help="Messages of so long, as 6h or 2d.")] = None,
    rate: Rate = 100.0,
    as_json: AsJson = False,
) -> None:
    """Plan to restore deliveries that the ledger has lost, as after a restore of the database, from what the topics say.

    Changes nothing; `replay run` restores. Stop workers and the reconciler until that is done.
    """
    settings = load_settings()
    wanted = _wanted("topic", since=since, until=until, last=last, offsets=None)
    if not isinstance(wanted, ByTime):
        raise TypeError("without offsets a range is one of time")
    topics = RebuildTopics(
        dispatch=settings.name(DISPATCH), attempts=settings.name(ATTEMPTS), reader_group=settings.name(READER_GROUP)
    )
    with _errors("no plan was written; the same command begins anew"):
        with operator_connection(settings.postgres_conninfo) as connection:
            made = make_rebuild_plan(
                settings.kafka, connection, wanted, topics, rate_per_second=rate, progress=_Line().offsets
            )
        write_plan(made, out)
    _show_plan(made, out, as_json=as_json)


def run(
    plan: Annotated[Path, typer.Argument(help="File that `replay plan` wrote.", dir_okay=False)],
    *,
    reason: Reason,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Do what a plan says, recorded as a run. Ctrl-C, or a kill, leaves a run that `replay resume` goes on with."""
    settings = load_settings()
    with _errors("nothing was started; the same command begins anew"):
        read = read_plan(plan)
        with operator_connection(settings.postgres_conninfo) as connection:
            run_id = acts.start(settings, connection, read, act(operator, reason))
            _say(f"run {run_id}; from another terminal: outrider replay status|pause|cancel {run_id}")
            _drive(settings, connection, run_id, as_json=as_json)


def resume(run: RunId, *, reason: Reason, operator: Operator = None, as_json: AsJson = False) -> None:
    """Let a paused run go on, and drive it from here if no process does, as after a crash."""
    settings, run_id = load_settings(), _run_id(run)
    with _errors("the run stays as it is"), operator_connection(settings.postgres_conninfo) as connection:
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
    with _errors("nothing was changed"), operator_connection(load_settings().postgres_conninfo) as connection:
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
    with _errors("nothing was changed"), operator_connection(load_settings().postgres_conninfo) as connection:
        run_id = _run_id(run)
        run_of(connection, run_id)
        print_report(connection, run_id, out, as_json=as_json)


def forget(run: RunId, *, reason: Reason, operator: Operator = None) -> None:
    """Delete the report by id of a run that is over. Its counts stay."""
    with _errors("the same command goes on"), operator_connection(load_settings().postgres_conninfo) as connection:
        forgotten = acts.forget(connection, _run_id(run), act(operator, reason))
    print(f"forgotten {forgotten} deliveries of the report")


def _drive(settings: Settings, connection: psycopg.Connection, run_id: UUID, *, as_json: bool) -> None:
    _, plan = run_of(connection, run_id)
    line = _Line()
    try:
        ended = Driver(settings, connection, run_id, plan, say=_say, report=line.run).drive()
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


def _show_plan(made: Plan, out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        print_plan(made)
        print(f"\nwritten to {out}; nothing is done before: outrider replay run {out} --reason '...'")


def _show_ended(ended: Ended, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": ended.run_id, "outcome": ended.outcome, **ended.progress.counts()})
    else:
        print_ended(ended)
    if ended.outcome != "done":
        raise typer.Exit(1)


def _wish(run: str, wanted: Wish, reason: str, operator: str | None) -> UUID:
    run_id = _run_id(run)
    with _errors("the run stays as it is"), operator_connection(load_settings().postgres_conninfo) as connection:
        is_new = acts.wish(connection, run_id, wanted, act(operator, reason))
    done = {"pause": "paused", "cancel": "cancelled", "run": "resumed"}[wanted]
    print(f"run {run_id} is {done}" if is_new else f"run {run_id} is {done} already")
    return run_id


def _source(*, topic: bool, ledger: bool, dead: bool) -> Source:
    options: list[tuple[Source, bool]] = [("topic", topic), ("ledger", ledger), ("dead", dead)]
    given = [name for name, is_given in options if is_given]
    if len(given) != 1:
        raise UsageError("say from where, with exactly one of --topic, --ledger, --dead")
    return given[0]


def _mode(text: str | None, source: Source, *, force: bool) -> Mode:
    found = text or ("failed" if source == "dead" else "missing")
    if found not in get_args(Mode):
        raise UsageError(f"--mode {found}: it is {', '.join(get_args(Mode))}")
    if found == "all" and not force:
        raise UsageError("--mode all sends again what receivers have acknowledged: say --force to mean it")
    if force and found != "all":
        raise UsageError("--force is for --mode all")
    if source == "dead" and found == "missing":
        raise UsageError("--dead are deliveries that were given up: --mode failed, which is the default")
    mode: Mode = found  # type: ignore[assignment]
    return mode


def _wanted(
    source: Source, *, since: str | None, until: str | None, last: str | None, offsets: list[str] | None
) -> Wanted | None:
    given = [name for name, value in (("--since", since), ("--until", until), ("--last", last)) if value is not None]
    if source != "topic":
        if given or offsets:
            raise UsageError("--since, --until, --last and --offsets are for --topic; see --admitted-since")
        return None
    if offsets:
        if given:
            raise UsageError("a range is given by time or by --offsets, not by both")
        return parse_offsets(offsets)
    if last is not None:
        if since is not None or until is not None:
            raise UsageError("--last goes alone: it ends now")
        return ByTime(datetime.now(UTC) - parse_duration(last), None)
    found = ByTime(_moment(since, "--since"), _moment(until, "--until"))
    if found.since is not None and found.until is not None and found.since >= found.until:
        raise UsageError("--since must lie before --until")
    return found


def _moment(text: str | None, option: str) -> datetime | None:
    try:
        return None if text is None else parse_moment(text)
    except OffsetsError as error:
        raise UsageError(f"{option}: {error}") from None


def _values(given: list[str] | None) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys(given)) if given else None


def _run_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"{text!r} is no run's id: see outrider runs list --kind replay") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Line:
    """Progress on stderr: a line that changes on a terminal, a plain one now and then elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS
        self._is_open = False

    def offsets(self, done: int, total: int) -> None:
        self._show(f"read {done} of {total} offsets")

    def run(self, progress: Progress) -> None:
        self._show(progress_line(progress))

    def end(self) -> None:
        if self._is_open:
            print(file=sys.stderr)

    def _show(self, text: str) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_SECONDS
        if sys.stderr.isatty():
            self._is_open = True
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            _say(text)


@contextmanager
def _errors(after_interrupt: str) -> Iterator[None]:
    try:
        yield
    except (ReplayError, OffsetsError) as error:
        raise CommandError(str(error)) from None
    except BusyError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError(f"interrupted: {after_interrupt}") from None
