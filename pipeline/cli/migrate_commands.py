"""``outrider migrate …``: the schema, explicitly."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.ledger.migrate import migrate_down, migrate_status, migrate_up
from pipeline.settings import load_settings


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The schema of the ledger.")
    group.command("up")(up)
    group.command("down")(down)
    group.command("status")(status)
    app.add_typer(group, name="migrate")


def up() -> None:
    """Apply what is missing. Safe to repeat, and to run from several places at once."""
    applied = migrate_up(load_settings().postgres_conninfo)
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("nothing to apply")


def down(
    to: Annotated[int, typer.Option(min=0, help="Undo every migration with a greater number.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this the command only says what it would do.")
    ] = False,
) -> None:
    """Undo migrations, newest first. DELETES what they hold."""
    conninfo = load_settings().postgres_conninfo
    if not yes:
        doomed = [m.migration for m in migrate_status(conninfo) if m.applied_at and int(m.migration[:4]) > to]
        print("\n".join(f"would undo {name}" for name in reversed(doomed)) or "nothing to undo")
        if doomed:
            print("their tables and rows go with them; repeat with --yes to do it")
        return
    for name in migrate_down(conninfo, to):
        print(f"undone {name}")


def status(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Every migration and when it was applied; exit code 1 while one is pending."""
    rows = migrate_status(load_settings().postgres_conninfo)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        for row in rows:
            print(f"{row.migration}  {row.applied_at or 'pending'}")
    raise typer.Exit(any(row.applied_at is None for row in rows))
