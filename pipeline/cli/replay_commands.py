"""``outrider replay …``: count, look at and run replays, and steer one from any terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer

from pipeline.cli.acting import AsJson
from pipeline.cli.errors import UsageError
from pipeline.cli.output import print_json
from pipeline.cli.replay_progress import Line, errors
from pipeline.cli.replay_runs import cancel, forget, pause, report, resume, run, status
from pipeline.cli.replay_text import print_plan
from pipeline.core.lifecycle import State
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.replay import Choice, Mode, Source
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.targets import parse_duration, parse_moment
from pipeline.replay.plan import Plan, write_plan
from pipeline.replay.planning import PlanRequest, make_plan
from pipeline.replay.ranges import ByTime, Wanted, parse_offsets
from pipeline.replay.rebuild_planning import RebuildTopics, make_rebuild_plan
from pipeline.settings import load_settings
from topics.declarations import ATTEMPTS, DISPATCH

READER_GROUP = "replay.plan"

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
    with errors("no plan was written; the same command begins anew"):
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
                progress=Line().offsets,
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
    with errors("no plan was written; the same command begins anew"):
        with operator_connection(settings.postgres_conninfo) as connection:
            made = make_rebuild_plan(
                settings.kafka, connection, wanted, topics, rate_per_second=rate, progress=Line().offsets
            )
        write_plan(made, out)
    _show_plan(made, out, as_json=as_json)


def _show_plan(made: Plan, out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        print_plan(made)
        print(f"\nwritten to {out}; nothing is done before: outrider replay run {out} --reason '...'")


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
