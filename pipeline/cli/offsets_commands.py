"""``outrider offsets …``: where a consumer group stands, and moving it on the record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
import psycopg
import typer

from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.offsets_text import print_applied, print_plan, print_report
from pipeline.cli.output import print_json, visible
from pipeline.input_files import InputFileError, read_named_text
from pipeline.ledger.operator import Act, operator_connection
from pipeline.ledger.runs import find_run
from pipeline.offsets.applying import Applied, Care, apply_plan, undo_run
from pipeline.offsets.errors import OffsetsError, RefusedError
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.offsets_csv import ROWS_MAX, read_csv, write_csv
from pipeline.offsets.places import Place
from pipeline.offsets.plan import Plan
from pipeline.offsets.plan_file import read_plan, write_plan
from pipeline.offsets.planning import PlanRequest, make_plan
from pipeline.offsets.read_messages import ReadLimits
from pipeline.offsets.standing_report import report_group
from pipeline.offsets.targets import (
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToListed,
    ToOffset,
    ToTime,
    parse_duration,
    parse_moment,
    parse_scope,
)
from pipeline.settings import Settings, load_settings

CSV_BYTES_MAX = 300 * ROWS_MAX
_CLEAR_TO_END = "\x1b[K"


def _named(given: str | list[str]) -> str | list[str]:
    if not all([given] if isinstance(given, str) else given):
        raise typer.BadParameter("a group has a name")
    return given


Group = Annotated[str, typer.Argument(help="Consumer group.", callback=_named)]
Groups = Annotated[list[str], typer.Argument(help="Consumer groups.", callback=_named)]
WaitSeconds = Annotated[
    float, typer.Option(min=0, max=3600, help="Wait so long for members to be gone: killed ones count for a while.")
]
WatchSeconds = Annotated[
    float, typer.Option(min=0, max=3600, help="Watch so long for commits by consumers that use assign().")
]
WATCH_SECONDS = 6.0
"""Longer than the interval of 5 s in which clients commit by default."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Consumer offsets of any group: show, plan, apply, undo.")
    group.command("show")(show)
    group.command("plan")(plan)
    group.command("apply")(apply)
    group.command("undo")(undo)
    app.add_typer(group, name="offsets")


def show(
    groups: Groups,
    *,
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be repeated.")] = None,
    count_max: Annotated[int, typer.Option(min=1, max=100_000_000, help="Messages that are read to count the lag.")] = (
        100_000
    ),
    count_seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Longest time for counting.")] = 20.0,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Committed offsets as kafka-consumer-groups exports them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """State, members, committed offsets, and unread messages, counted by reading them without their markers.

    With --json, one object a line for each group.
    """
    settings = load_settings()
    with _errors("the same command begins anew"):
        if as_csv:
            kafka = KafkaGroups(settings.kafka)
            print(write_csv({group: _committed(kafka, group, topic or []) for group in groups}), end="")
            return
        for group in groups:
            report = report_group(
                settings.kafka,
                group,
                topics=topic or [],
                messages_max=count_max,
                seconds_max=count_seconds,
                progress=_progress,
            )
            _clear_progress()
            if as_json:
                print_json(msgspec.to_builtins(report))
                continue
            if group != groups[0]:
                print()
            print_report(report)


def plan(
    group: Group,
    *,
    out: Annotated[Path, typer.Option(help="The plan file to write.", dir_okay=False)],
    reason: Reason,
    operator: Operator = None,
    to_time: Annotated[str | None, typer.Option(help="First message not older, as 2026-11-30T18:00:00Z.")] = None,
    by_duration: Annotated[str | None, typer.Option(help="So long ago, as 6h, 30m or PT6H.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first message that is there.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end of what is committed.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="This offset in each partition.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="So many offsets ahead, or back with a minus.")] = None,
    from_file: Annotated[Path | None, typer.Option(help="CSV of kafka-consumer-groups; - is standard input.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="TOPIC, or TOPIC:0,2 for some partitions; may be repeated.")
    ] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Read the affected messages, to count them exactly.")] = False,
    scan_seconds: Annotated[float, typer.Option(min=0.1, max=86_400, help="Longest time for that.")] = 300.0,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write the targets as CSV.", dir_okay=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Write what would be moved, and what that repeats or skips. Changes nothing.

    Without --topic: every partition that the group has committed, or that the file lists.
    """
    settings = load_settings()
    by = act(operator, reason)
    with _errors("no plan was written; the same command begins anew"), _ledger_if_delivery(settings, group) as ledger:
        request = PlanRequest(
            group=group,
            target=_target(
                group,
                to_time=to_time,
                by_duration=by_duration,
                to_offset=to_offset,
                shift_by=shift_by,
                from_file=from_file,
                earliest=to_earliest,
                latest=to_latest,
            ),
            scopes=[parse_scope(text) for text in topic or ()],
            operator=by.operator,
            reason=reason,
            scan=ReadLimits(seconds=scan_seconds) if scan else None,
        )
        made = make_plan(settings.kafka, request, ledger=ledger, progress=_progress)
        _clear_progress()
        write_plan(made, out)
        if csv is not None:
            _write_csv(made, csv)
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        print_plan(made)
        print(f"\nwritten to {out}; nothing is changed before: outrider offsets apply {out}")


def apply(
    plan: Annotated[Path, typer.Argument(help="File that `offsets plan` wrote.", dir_okay=False)],
    *,
    allow_skip: Annotated[
        bool, typer.Option("--allow-skip", help="Pass over messages that the group has not read.")
    ] = False,
    operator: Operator = None,
    wait_seconds: WaitSeconds = 0.0,
    watch_seconds: WatchSeconds = WATCH_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Do what a plan says, if the group is inactive and stands where it stood; recorded as a run, and read back."""
    settings = load_settings()
    with _errors("nothing was changed; the same command begins anew"):
        read = read_plan(plan)
        with operator_connection(settings.postgres_conninfo) as ledger:
            done = apply_plan(
                KafkaGroups(settings.kafka),
                ledger,
                read,
                Act(act(operator, None).operator, read.reason),
                Care(wait_seconds=wait_seconds, watch_seconds=watch_seconds),
                allow_skip=allow_skip,
                say=_say,
            )
    _show_applied(done, as_json=as_json)


def undo(
    run: Annotated[str, typer.Argument(help="Id of the run; see `outrider runs list`.")],
    *,
    reason: Reason,
    operator: Operator = None,
    even_if_moved: Annotated[
        bool, typer.Option("--even-if-moved", help="Although the group has read or moved since the run.")
    ] = False,
    wait_seconds: WaitSeconds = 0.0,
    watch_seconds: WatchSeconds = WATCH_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Put the offsets that a run moved back to where they were; a run of its own, which can be undone too."""
    settings = load_settings()
    with (
        _errors("nothing was changed; the same command begins anew"),
        operator_connection(settings.postgres_conninfo) as ledger,
    ):
        found = find_run(ledger, _run_id(run))
        if found is None:
            raise CommandError(f"no run {run}: see outrider runs list")
        done = undo_run(
            KafkaGroups(settings.kafka),
            ledger,
            found,
            act(operator, reason),
            Care(wait_seconds=wait_seconds, watch_seconds=watch_seconds),
            even_if_moved=even_if_moved,
            say=_say,
        )
    _show_applied(done, as_json=as_json)


def _target(
    group: str,
    *,
    to_time: str | None,
    by_duration: str | None,
    to_offset: int | None,
    shift_by: int | None,
    from_file: Path | None,
    earliest: bool,
    latest: bool,
) -> Target:
    given: list[Target] = []
    if to_time is not None:
        given.append(ToTime(parse_moment(to_time)))
    if by_duration is not None:
        given.append(_ago(by_duration))
    if to_offset is not None:
        given.append(ToOffset(to_offset))
    if shift_by is not None:
        given.append(ShiftBy(shift_by))
    if from_file is not None:
        given.append(_listed(from_file, group))
    if earliest:
        given.append(ToEarliest())
    if latest:
        given.append(ToLatest())
    if len(given) != 1:
        raise UsageError(
            "say where to, with exactly one of --to-time, --by-duration, --to-earliest, --to-latest, --to-offset, "
            "--shift-by, --from-file"
        )
    return given[0]


def _ago(text: str) -> ToTime:
    try:
        return ToTime(datetime.now(UTC) - parse_duration(text))
    except OverflowError:
        raise CommandError(f"--by-duration {text} is longer ago than any time") from None


def _listed(path: Path, group: str) -> ToListed:
    source = "standard input" if str(path) == "-" else str(path)
    try:
        text = read_named_text(path, CSV_BYTES_MAX)
    except InputFileError as error:
        raise CommandError(str(error)) from None
    try:
        return ToListed(read_csv(text, group), source)
    except OffsetsError as error:
        raise CommandError(f"{source}: {error}") from None


def _committed(groups: KafkaGroups, group: str, topics: list[str]) -> dict[Place, int]:
    groups.cluster_id()
    offsets = groups.committed(group)
    return {place: offset for place, offset in offsets.items() if not topics or place.topic in topics}


def _write_csv(made: Plan, path: Path) -> None:
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(write_csv({made.group: {move.place: move.target for move in made.moves}}))
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None


def _ledger_if_delivery(settings: Settings, group: str) -> AbstractContextManager[psycopg.Connection | None]:
    """Only the delivery group's messages mean something to the ledger; other groups need no database."""
    if group == settings.name("delivery"):
        return operator_connection(settings.postgres_conninfo)
    return nullcontext()


def _run_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"{text!r} is no run's id: see outrider runs list") from None


def _show_applied(done: Applied, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        print_applied(done)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _progress(done: int, total: int) -> None:
    line = f"read {done} of {total} offsets"
    if sys.stderr.isatty():
        print(f"\r{line}{_CLEAR_TO_END}", file=sys.stderr, end="", flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print(f"\r{_CLEAR_TO_END}", file=sys.stderr, end="", flush=True)


@contextmanager
def _errors(after_interrupt: str) -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        for reason in error.reasons:
            print(f"outrider: refused: {visible(reason)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OffsetsError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError(f"interrupted: {after_interrupt}") from None
