"""``outrider quarantine …``: what could not be published or read, and how it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
import psycopg
import typer

from connectors.config import ConnectorConfig
from connectors.control import RELEASE_ENTRIES_MAX, Selection
from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.connector_commands import both_sides
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.cli.quarantine_entries import Entry, SettledEntry, find_entry, unsettled_entries
from pipeline.cli.quarantine_release import Released, give_up_messages, release_messages, release_rows
from pipeline.ledger.operator import Act

MESSAGES_MAX = 10_000
"""Of one release, so that its memory is bounded."""

Kind = Annotated[
    Literal["row", "message"] | None,
    typer.Option(help="Only rows that the connector could not publish, or messages that no worker could read."),
]
Table = Annotated[str | None, typer.Option(help="Only rows of this table, as schema.table.")]
Key = Annotated[str | None, typer.Option(help="Only of this key; of deliveries that is the destination.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Rows and messages that could not go on, each with its reason.")
    group.command("list")(show_list)
    group.command("show")(show)
    group.command("release")(release)
    app.add_typer(group, name="quarantine")


def show_list(
    *,
    kind: Kind = None,
    table: Table = None,
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Entries of a page.")] = 50,
    after: Annotated[int, typer.Option(help="Go on after this entry, printed below a full page.")] = -1,
    as_json: AsJson = False,
) -> None:
    """What is not settled yet, oldest first."""
    with both_sides() as (connection, config):
        found = list(islice((e for e in _chosen(connection, config, kind, table, key) if e.number > after), limit))
    following = found[-1].number if len(found) == limit else None
    if as_json:
        print_json({"entries": [_plain(entry) for entry in found], "after": following})
        return
    print_columns(
        ("ENTRY", "KIND", "SINCE", "FROM", "KEY", "DELIVERY", "REASON"),
        [(e.number, e.kind, e.at, e.where, _text(e.key), e.delivery_id, e.reason) for e in found],
    )
    if following is not None:
        print(f"more: --after {following}", file=sys.stderr)


def show(entry: Annotated[int, typer.Argument(help="Its number, from the list.")], as_json: AsJson = False) -> None:
    """One entry with all that is known of it, and how it was settled."""
    with both_sides() as (connection, config):
        found = find_entry(config.kafka, config.quarantine_topic, connection.info.dbname, entry)
    if found is None:
        raise CommandError(f"no entry {entry}: see outrider quarantine list")
    mark = found.mark if isinstance(found, SettledEntry) else None
    shown = found.entry if isinstance(found, SettledEntry) else found
    if as_json:
        print_json({**_plain(shown), "settled": None if mark is None else msgspec.to_builtins(mark)})
        return
    settled = "no" if mark is None else f"{mark.state} by {mark.operator} at {mark.at}: {mark.reason}"
    row = shown.row
    print_fields(
        [
            ("entry", shown.number),
            ("kind", shown.kind),
            ("since", shown.at),
            ("from", shown.where),
            ("key", _text(shown.key)),
            ("id", shown.id),
            ("delivery", shown.delivery_id),
            ("reason", shown.reason),
            *(() if row is None else (("topic", row.topic), ("lsn", f"{row.lsn}, row {row.row}"))),
            *(() if row is None else ((f"column {name}", text) for name, text in row.columns.items())),
            *((f"header {name}", text) for name, text in shown.headers.items()),
            ("settled", settled),
        ]
    )


def release(
    *,
    entries: Annotated[list[int] | None, typer.Argument(help="Their numbers, from the list.")] = None,
    kind: Kind = None,
    table: Table = None,
    key: Key = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is in quarantine now.")] = False,
    reason: Reason,
    operator: Operator = None,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Settle what still does not fit, too; later rows of its key then go on.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this a choice by --all, --table or --key only counts.")
    ] = False,
    wait_seconds: Annotated[float, typer.Option(min=0, max=3_600, help="Longest wait for the connector.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Let entries go on. Named ones at once; others after a look at their number, with --yes.

    A row is read again from its table and published by the connector, exactly once; where its key is held, all rows
    of that key are, in order. The delivery of a message is dispatched anew. What is settled already stays so.
    """
    numbers = entries or []
    if bool(numbers) == (everything or table is not None or key is not None or kind is not None):
        raise UsageError("name entries, or choose them by --all, --kind, --table or --key")
    if len(numbers) > RELEASE_ENTRIES_MAX:
        raise UsageError(f"at most {RELEASE_ENTRIES_MAX} entries may be named: choose by --table or --key")
    by = act(operator, reason)
    with both_sides() as (connection, config):
        rows, last, messages, more_messages = 0, -1, list[Entry](), 0
        wanted = set(numbers)
        for entry in _chosen(connection, config, kind, table, key):
            if numbers and entry.number not in wanted:
                continue
            wanted.discard(entry.number)
            if entry.kind == "row":
                rows, last = rows + 1, entry.number
            elif len(messages) < MESSAGES_MAX:
                messages.append(entry)
            else:
                more_messages += 1
        if not yes and not numbers:
            _preview(rows, len(messages) + more_messages, as_json=as_json)
            return
        released = Released(more_messages=more_messages)
        if rows:
            selection = Selection(
                entries=tuple(sorted(set(numbers))),
                until=last + 1,
                table=table,
                key=None if key is None else key.encode(),
            )
            release_rows(connection, config, selection, by, released, gives_up=give_up, wait_seconds=wait_seconds)
        _release_messages(connection, config, messages, by, released, give_up=give_up)
    _report(released, asked_rows=rows, settled_before=sorted(wanted), as_json=as_json)


def _release_messages(
    connection: psycopg.Connection,
    config: ConnectorConfig,
    messages: list[Entry],
    by: Act,
    released: Released,
    *,
    give_up: bool,
) -> None:
    if not messages:
        return
    release_messages(connection, config, messages, by, released)
    if give_up and released.unknown:
        unknown = [entry for entry in messages if entry.number in released.unknown]
        give_up_messages(connection, config, unknown, by)
        released.unknown.clear()


def _chosen(
    connection: psycopg.Connection, config: ConnectorConfig, kind: str | None, table: str | None, key: str | None
) -> Iterator[Entry]:
    for entry in unsettled_entries(config.kafka, config.quarantine_topic, connection.info.dbname):
        if kind is not None and entry.kind != kind:
            continue
        if table is not None and (entry.kind != "row" or entry.where != table):
            continue
        if key is None or entry.key == key.encode():
            yield entry


def _preview(rows: int, messages: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"rows": rows, "messages": messages, "done": False})
    else:
        print(f"would release {rows} rows and {messages} messages; repeat with --yes to do it")


def _report(released: Released, *, asked_rows: int, settled_before: list[int], as_json: bool) -> None:
    """Exit code 1 where something that was asked for is still in quarantine."""
    rows = released.rows
    left = bool(released.unknown or released.more_messages) or bool(
        asked_rows and (rows is None or rows.refused or rows.waiting)
    )
    if as_json:
        plain: dict[str, Any] = asdict(released)
        plain["rows"] = None if rows is None else msgspec.to_builtins(rows)
        print_json({**plain, "settled_before": settled_before})
        raise typer.Exit(1 if left else 0)
    if rows is not None:
        print(f"{rows.released} rows published")
        for count, what in (
            (rows.gone, "are not in their table any more, and are settled as gone"),
            (rows.given_up, "were given up"),
            (rows.refused, "still cannot be published"),
            (rows.waiting, "wait behind those, in order of their key"),
        ):
            if count:
                print(f"{count} rows {what}")
        for refusal in rows.refusals:
            print(f"{refusal.entry}: {visible(refusal.reason)}", file=sys.stderr)
    elif asked_rows:
        print(f"{asked_rows} rows are asked for: {released.why}")
    for number, dispatch_seq in released.dispatched.items():
        print(f"{number}: dispatched again as number {dispatch_seq}")
    for number in released.gone_on:
        print(f"{number}: the delivery has gone on by itself; settled")
    for number in released.unknown:
        print(
            f"{number}: the message names no delivery, so nothing can be dispatched; --give-up settles it",
            file=sys.stderr,
        )
    if released.more_messages:
        print(f"{released.more_messages} messages more: repeat the command", file=sys.stderr)
    for number in settled_before:
        print(f"{number}: was settled before, or is no entry; nothing is done", file=sys.stderr)
    raise typer.Exit(1 if left else 0)


def _plain(entry: Entry) -> dict[str, Any]:
    row = None if entry.row is None else msgspec.to_builtins(entry.row)
    return {**asdict(entry), "key": _text(entry.key), "row": row}


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")
