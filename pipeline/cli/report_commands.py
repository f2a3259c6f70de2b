"""``outrider reconcile report``: ledger, topics, audit and a receiver's list compared; and what can be repaired."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TextIO

import psycopg
import typer

from pipeline.cli.acting import AsJson, Operator, OptionalReason, act
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.moments import parse_moment_or_ago
from pipeline.cli.output import visible
from pipeline.cli.report_repair import Repair, preview_repair, repair
from pipeline.cli.report_text import print_report
from pipeline.input_files import InputFileError, open_named_text
from pipeline.ledger.report_tables import (
    LedgerLockedError,
    LockHolder,
    Scope,
    count_rows,
    finding_rows,
    report_session,
)
from pipeline.ledger.reports import destination_exists
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.targets import parse_duration
from pipeline.report.counting import Report, make_report
from pipeline.report.receiver_list import ReceiverListError, bounded_lines, read_receiver_list
from pipeline.report.render_csv import write_csv
from pipeline.report.render_html import write_html
from pipeline.report.render_json import write_json
from pipeline.report.watermark import Settling
from pipeline.settings import Settings, load_settings

BUCKETS_MAX = 10_000
SINCE_DEFAULT = "24h"
_CLEAR_TO_END = "\x1b[K"


def report(
    *,
    since: Annotated[
        str,
        typer.Option(help="Deliveries admitted from this moment on, as 2026-11-30T18:00:00Z, or so long ago, as 6h."),
    ] = SINCE_DEFAULT,
    until: Annotated[
        str | None, typer.Option(help="And before this moment, or so long ago; by default the moment of the report.")
    ] = None,
    bucket: Annotated[str, typer.Option(help="Length of a bucket: 1d, 1h, 5m.")] = "1h",
    destination: Annotated[str | None, typer.Option(help="Only this destination.")] = None,
    receiver: Annotated[
        Path | None,
        typer.Option(
            help="The receiver's own list: ids one a line, or JSON objects; - is standard input.", dir_okay=False
        ),
    ] = None,
    slot: Annotated[
        list[str] | None, typer.Option(help="Slot that feeds the topics, where it is not the connector's; repeated.")
    ] = None,
    settle_seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="Longest wait for the connector, and for the audit, to be as far.")
    ] = 20.0,
    lock_seconds: Annotated[
        float, typer.Option(min=0.001, max=3600, help="Longest wait for a session that has locked a table.")
    ] = 30.0,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the counts there.", dir_okay=False)] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots there.", dir_okay=False)
    ] = None,
    repair_: Annotated[
        bool, typer.Option("--repair", help="Count what can be dispatched again; with --yes do it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --repair: also what succeeded and is not in the receiver's list.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do it.")] = False,
    operator: Operator = None,
    reason: OptionalReason = None,
    as_json: AsJson = False,
) -> None:
    """Compare what was admitted with topics, attempts, audit and receiver, as of a watermark. Exit code 1 on a difference.

    Changes nothing without --repair --yes.
    """
    settings = load_settings()
    scope = _scope(since, until, bucket, destination)
    _check_options(receiver, destination, reason, repairs=repair_, force=force, yes=yes)
    settling = Settling(slot or [settings.connector_slot], settle_seconds, _say)
    with _errors(), ExitStack() as stack:
        session = stack.enter_context(report_session(settings.postgres_conninfo, lock_seconds=lock_seconds))
        if destination is not None and not destination_exists(session, destination):
            raise CommandError(f"no destination {visible(destination)}: see outrider destination list")
        # Opened before the long work, so that a name that cannot be is told at once.
        csv = None if csv_file is None else stack.enter_context(_new_file(csv_file))
        html = None if html_file is None else stack.enter_context(_new_file(html_file))
        theirs = None if receiver is None else stack.enter_context(open_named_text(receiver))
        ids = None if theirs is None else read_receiver_list(bounded_lines(theirs))
        made = make_report(session, settings, scope, settling, receiver_ids=ids, progress=_progress)
        _clear_progress()
        if csv is not None:
            write_csv(lambda: count_rows(session), csv)
        if html is not None:
            write_html(made, session, html)
        _show(made, session, as_json=as_json)
        if repair_:
            wanted = Repair(act(operator, reason), force=force)
            _repair(settings, session, made, wanted, yes=yes, as_json=as_json)
    raise typer.Exit(0 if made.verdict.is_exact else 1)


def _show(made: Report, session: psycopg.Connection, *, as_json: bool) -> None:
    if as_json:
        write_json(made, count_rows(session), finding_rows(session), sys.stdout)
    else:
        print_report(made, session)


def _repair(
    settings: Settings, session: psycopg.Connection, made: Report, wanted: Repair, *, yes: bool, as_json: bool
) -> None:
    # Under --json standard output holds the report alone.
    out = sys.stderr if as_json else sys.stdout
    for line in preview_repair(session, made.verdict.differences, wanted):
        print(line, file=out)
    if yes:
        for line in repair(settings, session, wanted, _say):
            print(line, file=out)
    else:
        print("nothing was changed: repeat with --yes to do it", file=out)


def _check_options(
    receiver: Path | None, destination: str | None, reason: str | None, *, repairs: bool, force: bool, yes: bool
) -> None:
    if receiver is not None and destination is None:
        raise UsageError("--receiver needs --destination: a list is one receiver's")
    if (force or yes) and not repairs:
        raise UsageError("--force and --yes belong to --repair")
    if force and receiver is None:
        raise UsageError("--force needs --receiver: what succeeded is repaired only where its receiver lacks it")
    if repairs and not reason:
        raise UsageError("--repair needs a --reason, for the record")


def _scope(since: str, until: str | None, bucket: str, destination: str | None) -> Scope:
    now = datetime.now(UTC)
    begin = parse_moment_or_ago("--since", since, now)
    end = now if until is None else parse_moment_or_ago("--until", until, now)
    try:
        length = parse_duration(bucket)
    except (OffsetsError, OverflowError) as error:
        raise UsageError(f"--bucket: {error}") from None
    if begin >= end:
        raise UsageError("--since must lie before --until")
    if length < timedelta(seconds=1) or (end - begin) / length > BUCKETS_MAX:
        raise UsageError(f"--bucket {bucket} makes more than {BUCKETS_MAX} buckets, or is below a second")
    return Scope(begin, end, length, destination)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    try:
        file = path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None
    with file:
        yield file


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except OffsetsError as error:
        raise CommandError(str(error)) from None
    except (ReceiverListError, InputFileError) as error:
        raise CommandError(f"--receiver: {error}") from None
    except LedgerLockedError as error:
        raise CommandError(_locked(error.holders)) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"--receiver: is not UTF-8: {error}") from None
    except KeyboardInterrupt:
        raise CommandError("interrupted: nothing is left behind; the same command begins anew") from None


def _locked(holders: Sequence[LockHolder]) -> str:
    if not holders:
        return "a table was locked for longer than --lock-seconds, and is free again: the same command begins anew"
    by_pid: dict[int, list[LockHolder]] = {}
    for holder in holders:
        by_pid.setdefault(holder.pid, []).append(holder)
    sessions = "; ".join(
        f"process {pid} ({visible(held[0].user)}, {visible(held[0].application)}) "
        f"{'waits to lock' if held[0].is_waiting else 'has locked'} {', '.join(visible(h.table) for h in held)}"
        for pid, held in by_pid.items()
    )
    return (
        f"the report waited longer than --lock-seconds: {sessions}. Wait until that is over, or end it as its user: "
        f"select pg_terminate_backend({holders[0].pid}); then the same command begins anew"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rread {done} of {total} offsets{_CLEAR_TO_END}", file=sys.stderr, end="", flush=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print(f"\r{_CLEAR_TO_END}", file=sys.stderr, end="", flush=True)
