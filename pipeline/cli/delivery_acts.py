"""``outrider delivery retry`` and ``cancel``: named deliveries at once, many after a look at their number."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from pipeline.cli.acting import AsJson, Operator, Reason, act
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_json, visible
from pipeline.input_files import InputFileError, read_named_text
from pipeline.ledger import operator_deliveries as acts
from pipeline.ledger.operator import Act, operator_connection
from pipeline.ledger.reports import destination_exists, find_delivery
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.targets import parse_duration
from pipeline.settings import load_settings

IDS_MAX = 100_000
IDS_BYTES_MAX = 64 * 1024 * 1024

DestinationFilter = Annotated[str | None, typer.Option("--destination", help="Only those of this destination.")]
DeliveryIds = Annotated[list[str] | None, typer.Argument(help="Deliveries by id.")]
IdsFrom = Annotated[
    Path | None, typer.Option(help="File with delivery ids, one a line; - reads stdin. Empty lines are passed over.")
]
Pending = Annotated[bool, typer.Option("--pending", help="Those that wait in the ledger.")]
Enqueued = Annotated[bool, typer.Option("--enqueued", help="Those in transport, lost ones among them.")]
OutcomeFilter = Annotated[str | None, typer.Option("--outcome", help="Only those whose last attempt ended so.")]
OlderThan = Annotated[str | None, typer.Option(help="Only those admitted so long ago: 2d, 6h, 30m, 45s.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this the command only counts.")]


@dataclass(frozen=True, slots=True)
class _Verb:
    """One of the two acts: its words, and how it is done to named deliveries and to a selection."""

    word: str
    done: str
    hint: str
    named: Callable[[psycopg.Connection, Sequence[str], Act], list[str]]
    selection: Callable[[psycopg.Connection, acts.Selection, Act, Callable[[int], None]], int]


def retry(
    delivery_ids: DeliveryIds = None,
    *,
    reason: Reason,
    ids_from: IdsFrom = None,
    dead: Annotated[bool, typer.Option("--dead", help="Those given up.")] = False,
    pending: Pending = False,
    enqueued: Enqueued = False,
    destination: DestinationFilter = None,
    outcome: OutcomeFilter = None,
    older_than: OlderThan = None,
    force: Annotated[bool, typer.Option("--force", help="Those that succeeded too: receivers see them again.")] = False,
    yes: Yes = False,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Hand deliveries to Kafka again, under the same id and with the same bytes: dead ones, or before their time.

    Named ones at once. A selection (--dead, --pending or --enqueued, with --destination, --outcome, --older-than) after a
    look at its number, with --yes; it goes out at its destinations' rates.
    """
    verb = _Verb(
        word="retry",
        done="retried",
        hint="what is in flight ends by itself, what succeeded is retried with --force, and what has lost its payload to "
        "retention stays as it is",
        named=lambda connection, ids, by: acts.retry(connection, ids, by, force=force),
        selection=acts.retry_selection,
    )
    wanted = _filter({"dead": dead, "pending": pending, "enqueued": enqueued}, destination, outcome, older_than)
    if force and wanted is not None:
        raise UsageError("--force is for deliveries named one by one")
    _act(verb, delivery_ids, ids_from, wanted, act(operator, reason), yes=yes, as_json=as_json)


def cancel(
    delivery_ids: DeliveryIds = None,
    *,
    reason: Reason,
    ids_from: IdsFrom = None,
    pending: Pending = False,
    enqueued: Enqueued = False,
    destination: DestinationFilter = None,
    outcome: OutcomeFilter = None,
    older_than: OlderThan = None,
    yes: Yes = False,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """End deliveries that wait or are in transport: they become dead, with the outcome `cancelled`.

    Named ones at once. A selection (--pending or --enqueued with --destination, and --outcome, --older-than) after a look at
    its number, with --yes. A request in flight cannot be called back.
    """
    verb = _Verb(
        word="cancel",
        done="cancelled",
        hint="only pending and enqueued ones are cancelled",
        named=acts.cancel,
        selection=acts.cancel_selection,
    )
    wanted = _filter({"pending": pending, "enqueued": enqueued}, destination, outcome, older_than)
    _act(verb, delivery_ids, ids_from, wanted, act(operator, reason), yes=yes, as_json=as_json)


@contextmanager
def ledger_of(destination_id: str | None) -> Iterator[psycopg.Connection]:
    """A session; a destination that is asked for must exist, so that a slip is not an empty list."""
    with operator_connection(load_settings().postgres_conninfo) as connection:
        if destination_id is not None and not destination_exists(connection, destination_id):
            raise CommandError(f"no destination {visible(destination_id)}: see outrider destination list")
        yield connection


def _filter(
    states: dict[acts.SelectedState, bool], destination: str | None, outcome: str | None, older_than: str | None
) -> acts.Filter | None:
    """What the options select; None where they select nothing, so that deliveries must be named."""
    given = [state for state, is_given in states.items() if is_given]
    narrowed = [destination, outcome, older_than]
    options = " or ".join(f"--{state}" for state in states)
    if not given:
        if any(narrowed):
            raise UsageError(f"say which: {options}")
        return None
    if len(given) > 1:
        raise UsageError(f"{options}: one of them")
    if not any(narrowed) or (destination is None and given[0] != "dead"):
        needed = "--destination NAME" if given[0] != "dead" else "--destination, --outcome or --older-than"
        raise UsageError(f"--{given[0]} needs {needed} beside it")
    return acts.Filter(
        state=given[0],
        destination_id=destination,
        outcome=outcome,
        older_than_seconds=0.0 if older_than is None else _duration(older_than).total_seconds(),
    )


def _act(
    verb: _Verb,
    delivery_ids: list[str] | None,
    ids_from: Path | None,
    wanted: acts.Filter | None,
    by: Act,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    if (bool(delivery_ids), ids_from is not None, wanted is not None).count(True) != 1:
        raise UsageError("name deliveries, give --ids-from, or select them by options: one of these")
    with ledger_of(None if wanted is None else wanted.destination_id) as connection:
        if wanted is not None:
            _act_on_selection(connection, verb, acts.select(connection, wanted), by, yes=yes, as_json=as_json)
        elif ids_from is not None:
            _act_on_file(connection, verb, read_ids(ids_from), by, yes=yes, as_json=as_json)
        elif delivery_ids:
            _report_named(connection, verb, delivery_ids, verb.named(connection, delivery_ids, by), as_json=as_json)


def _act_on_selection(
    connection: psycopg.Connection, verb: _Verb, selection: acts.Selection, by: Act, *, yes: bool, as_json: bool
) -> None:
    what = visible(str(selection.filter))
    moved = 0
    if yes:
        moved = verb.selection(connection, selection, by, lambda rows: _progress(verb.done, rows, selection.rows))
    if as_json:
        print_json({"selected": selection.rows, "moved": moved})
    elif yes:
        print(f"{verb.done} {moved} of {selection.rows} {what}")
    else:
        print(f"would {verb.word} {selection.rows} {what}; repeat with --yes to do it")


def _act_on_file(
    connection: psycopg.Connection, verb: _Verb, delivery_ids: list[str], by: Act, *, yes: bool, as_json: bool
) -> None:
    """In pages, each on the record. Exit code 1 where one of them did not move."""
    if not yes:
        if as_json:
            print_json({"selected": len(delivery_ids), "moved": 0})
        else:
            print(f"would {verb.word} {len(delivery_ids)} named deliveries; repeat with --yes to do it")
        return
    moved = 0
    for first in range(0, len(delivery_ids), acts.PAGE_ROWS):
        moved += len(verb.named(connection, delivery_ids[first : first + acts.PAGE_ROWS], by))
        _progress(verb.done, moved, len(delivery_ids))
    if as_json:
        print_json({"selected": len(delivery_ids), "moved": moved})
    else:
        print(f"{verb.done} {moved} of {len(delivery_ids)} named deliveries")
    if moved < len(delivery_ids):
        print(f"the others stay as they are: {verb.hint}", file=sys.stderr)
        raise typer.Exit(1)


def read_ids(path: Path) -> list[str]:
    try:
        text = read_named_text(path, IDS_BYTES_MAX)
    except InputFileError as error:
        raise CommandError(f"--ids-from: {error}") from None
    delivery_ids = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not delivery_ids:
        raise CommandError(f"--ids-from: {path} names no delivery")
    if len(delivery_ids) > IDS_MAX:
        raise CommandError(f"--ids-from: {path} names more than {IDS_MAX} deliveries; divide it")
    return delivery_ids


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except OffsetsError as error:
        raise UsageError(f"--older-than: {error}") from None


def _progress(done: str, rows: int, of_rows: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} {rows} of {of_rows}", end="" if rows < of_rows else "\n", file=sys.stderr, flush=True)
    elif rows % (20 * acts.PAGE_ROWS) == 0:
        print(f"{done} {rows} of {of_rows}", file=sys.stderr)


def _report_named(
    connection: psycopg.Connection, verb: _Verb, asked: list[str], moved: list[str], *, as_json: bool
) -> None:
    """Exit code 1 where one of those asked for did not move."""
    left = [delivery_id for delivery_id in asked if delivery_id not in moved]
    states = {delivery_id: _state(connection, delivery_id) for delivery_id in left}
    if as_json:
        print_json({"moved": moved, "left": states})
    else:
        for delivery_id in moved:
            print(f"{verb.done} {visible(delivery_id)}")
        for delivery_id, state in states.items():
            print(f"{visible(delivery_id)} is {state}: {verb.hint}", file=sys.stderr)
    raise typer.Exit(1 if left else 0)


def _state(connection: psycopg.Connection, delivery_id: str) -> str:
    entry = find_delivery(connection, delivery_id)
    return "unknown" if entry is None else entry.state
