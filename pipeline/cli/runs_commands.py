"""``outrider runs …``: what operators and reconcilers did."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from pipeline.cli.acting import AsJson
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.runs import END, Run, RunCursor, find_run, list_runs
from pipeline.settings import load_settings


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Runs: every recorded act, with who, why and what came of it.")
    group.command("list")(show_list)
    group.command("show")(show)
    app.add_typer(group, name="runs")
    # `outrider run list` is what one types who has just read of a run; `runs` is the documented name.
    for known in app.registered_groups:
        if known.name == "run" and known.typer_instance is not None:
            known.typer_instance.command("list", hidden=True)(show_list)
            known.typer_instance.command("show", hidden=True)(show)


def show_list(
    *,
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as offsets.apply.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Passes of reconcilers too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Rows of a page.")] = 50,
    after: Annotated[str | None, typer.Option(help="Go on after this cursor, printed below a full page.")] = None,
    as_json: AsJson = False,
) -> None:
    """List acts of people, newest first."""
    with operator_connection(load_settings().postgres_conninfo) as connection:
        runs = list_runs(connection, kind=kind, acts_only=not all_runs, before=_cursor(after), limit=limit)
    following = f"{runs[-1].started_at.isoformat()},{runs[-1].run_id}" if len(runs) == limit else None
    if as_json:
        print_json({"runs": [_plain(run) for run in runs], "after": following})
        return
    print_columns(
        ("RUN", "KIND", "OPERATOR", "STARTED", "OUTCOME", "COUNTS", "REASON"),
        [
            (run.run_id, run.kind, run.operator, run.started_at, run.outcome, _short(run.counts), run.reason)
            for run in runs
        ],
    )
    if following is not None:
        print(f"more: --after {following}", file=sys.stderr)


def show(run: str, as_json: AsJson = False) -> None:
    """One run with all that it recorded."""
    try:
        run_id = UUID(run)
    except ValueError:
        raise CommandError(f"{visible(run)} is no run's id: see outrider runs list") from None
    with operator_connection(load_settings().postgres_conninfo) as connection:
        found = find_run(connection, run_id)
    if found is None:
        raise CommandError(f"no run {run_id}")
    if as_json:
        print_json(_plain(found))
        return
    print_fields(
        [
            ("run", found.run_id),
            ("kind", found.kind),
            ("woken by", found.woken_by),
            ("operator", found.operator),
            ("reason", found.reason),
            ("started", found.started_at),
            ("finished", found.finished_at),
            ("outcome", found.outcome),
            ("error", found.error),
            *((f"parameter {name}", value) for name, value in found.parameters.items()),
            *((f"count {name}", value) for name, value in found.counts.items()),
        ]
    )
    for title, state in (("before", found.before), ("after", found.after)):
        if state is not None:
            _print_state(title, state)


def _print_state(title: str, state: Any) -> None:
    """Rows of one shape as a table, anything else as JSON."""
    print(f"\n{title}")
    if (
        isinstance(state, list)
        and state
        and all(isinstance(row, dict) and row.keys() == state[0].keys() for row in state)
    ):
        print_columns([name.upper() for name in state[0]], [tuple(row.values()) for row in state])
    else:
        print(visible(json.dumps(state)))


def _plain(run: Run) -> dict[str, Any]:
    return {**asdict(run), "outcome": run.outcome}


def _short(counts: dict[str, Any]) -> str:
    """Numbers only: ids and the like are in `runs show`."""
    return " ".join(
        f"{name}={value}" for name, value in counts.items() if isinstance(value, int) and not isinstance(value, bool)
    )


def _cursor(text: str | None) -> RunCursor:
    if text is None:
        return END
    time, comma, run_id = text.partition(",")
    try:
        moment = datetime.fromisoformat(time)
        if not comma or moment.tzinfo is None:
            raise ValueError
        return moment, UUID(run_id)
    except ValueError:
        raise CommandError(f"--after {visible(text)}: take the cursor that the page before printed") from None
