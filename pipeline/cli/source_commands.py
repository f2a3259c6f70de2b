"""``outrider source …``: what finds business rows that are due, and how operators switch it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import psycopg
import typer

from pipeline.cli import source_check_command, source_shadow_command
from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.configured_sources import configured_sources
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.source_switches import (
    NoSuchSourceError,
    SourceEntry,
    SwitchError,
    find_source,
    list_passes,
    list_refusals,
    list_sources,
    register_source,
    switch_source,
)
from pipeline.ledger.sources import Mode
from pipeline.settings import Settings, load_settings

PASSES_SHOWN = 10
REFUSALS_SHOWN = 100


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Sources: business rows that become due, and what they admit.")
    group.command("list")(show_all)
    group.command("show")(show)
    group.command("set")(set_)
    source_shadow_command.register(group)
    source_check_command.register(group)
    app.add_typer(group, name="source")


def show_all(as_json: AsJson = False) -> None:
    """List the sources that reconcilers have read, with their modes."""
    with _ledger(load_settings()) as connection:
        sources = list_sources(connection)
    if as_json:
        print_json([asdict(source) for source in sources])
        return
    print_columns(
        ("SOURCE", "ENABLED", "MODE", "REFUSED", "LAST PASS", "FILE READ", "DESCRIPTION"),
        [
            (
                source.source_id,
                "yes" if source.enabled else "no",
                source.modes_text,
                source.refused,
                source.passed_at,
                source.read_at,
                source.description,
            )
            for source in sources
        ],
    )


def show(source: str, as_json: AsJson = False) -> None:
    """One source with its last passes, and the rows that admission refuses."""
    with _ledger(load_settings()) as connection:
        entry = find_source(connection, source)
        passes = list_passes(connection, source, limit=PASSES_SHOWN)
        refusals = list_refusals(connection, source, limit=REFUSALS_SHOWN)
    if as_json:
        shown = {"passes": [asdict(one) for one in passes], "refusals": [asdict(one) for one in refusals]}
        print_json({**asdict(entry), **shown})
        return
    _print_entry(entry)
    if passes:
        print()
        print_columns(
            ("RUN", "KIND", "WOKEN BY", "STARTED", "PAGES", "ADMITTED", "EXISTING", "REFUSED", "ERROR"),
            [
                (
                    one.run_id,
                    one.kind.removeprefix("source."),
                    one.woken_by,
                    one.started_at,
                    *(one.counts.get(name) for name in ("pages", "admitted", "existing", "refused")),
                    one.error if one.finished_at is not None else "not ended",
                )
                for one in passes
            ],
        )
    if refusals:
        print()
        print_columns(
            ("REFUSED EVENT", "TIMES", "SINCE", "AGAIN AT", "REASON"),
            [(one.event_id, one.times, one.first_at, one.retry_at, one.reason) for one in refusals],
        )


def set_(
    source: str,
    *,
    reason: Reason,
    mode: Annotated[Mode | None, typer.Option(help="What the shards' rows are to the reconciler.")] = None,
    shard: Annotated[list[int] | None, typer.Option(min=0, help="Only this shard; repeatable. Default: all.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="The source as a whole.")] = None,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Switch a source, or shards of it. When this returns, nothing is claimed under the old modes any more."""
    if mode is None and enabled is None:
        raise UsageError("nothing to set: give --mode, --enable or --disable")
    if shard and mode is None:
        raise UsageError("--shard says whose --mode it is: give that too")
    settings = load_settings()
    with _ledger(settings) as connection:
        _make_known(settings, connection, source)
        entry = switch_source(
            connection, source, act(operator, reason), mode=mode, shards=shard or None, enabled=enabled
        )
    if as_json:
        print_json(asdict(entry))
    else:
        _print_entry(entry)


def _make_known(settings: Settings, connection: psycopg.Connection, source_id: str) -> None:
    """A source whose file is at hand need not wait for a reconciler to read it."""
    source = configured_sources(settings).get(source_id)
    if source is not None:
        register_source(
            connection,
            source.source_id,
            description=source.description,
            shard_count=source.shard_count,
            can_shadow=source.lookup is not None,
        )


def _print_entry(entry: SourceEntry) -> None:
    print_fields(
        [
            ("source", entry.source_id),
            ("description", entry.description),
            ("enabled", "yes" if entry.enabled else "no"),
            ("shards", entry.shard_count),
            ("mode", entry.modes_text),
            ("refused", entry.refused),
            ("last pass", entry.passed_at),
            ("file read", entry.read_at),
        ]
    )
    if entry.has_other_shards:
        print(
            f"modes were set for another number of shards, and count no longer: outrider source set {entry.source_id}"
        )


@contextmanager
def _ledger(settings: Settings) -> Iterator[psycopg.Connection]:
    try:
        with operator_connection(settings.postgres_conninfo) as connection:
            yield connection
    except NoSuchSourceError as error:
        raise CommandError(
            f"no source {visible(error)}: no reconciler has read it, and it is not in OUTRIDER_SOURCES_DIRECTORY"
        ) from None
    except SwitchError as error:
        raise CommandError(str(error)) from None
