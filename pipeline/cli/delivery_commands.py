"""``outrider delivery …``: where deliveries stand. What an operator may do to them is in delivery_acts.py."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from pipeline.cli import delivery_acts
from pipeline.cli.acting import AsJson
from pipeline.cli.delivery_acts import DestinationFilter, ledger_of
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.core.lifecycle import State
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.reports import (
    ALL_STATES,
    BEGINNING,
    AttemptEntry,
    Cursor,
    DeliveryEntry,
    EventEntry,
    attempts_of,
    dispatches_of,
    event_of,
    find_delivery,
    last_answers,
    list_dead,
    list_of_destination,
    list_waiting,
)
from pipeline.settings import load_settings

HISTORY_ROWS_MAX = 200


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Where deliveries stand; retry and cancel.")
    group.command("list")(show_list)
    group.command("show")(show)
    group.command("retry")(delivery_acts.retry)
    group.command("cancel")(delivery_acts.cancel)
    app.add_typer(group, name="delivery")


def show_list(
    *,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Those not terminal: why, and when they are next.")
    ] = False,
    dead: Annotated[bool, typer.Option("--dead", help="Those given up, in the order they died.")] = False,
    state: Annotated[State | None, typer.Option(help="Those in one state.")] = None,
    destination: DestinationFilter = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Rows of a page.")] = 50,
    after: Annotated[str | None, typer.Option(help="Go on after this cursor, printed below a full page.")] = None,
    as_json: AsJson = False,
) -> None:
    """List deliveries, oldest first. By default those waiting; with --destination alone, all of that destination."""
    if waiting + dead + (state is not None) > 1:
        raise UsageError("--waiting, --dead and --state exclude each other")
    if state is State.SUCCEEDED and destination is None:
        raise UsageError("--state succeeded needs a --destination: there may be very many")
    place = _cursor(after)
    with ledger_of(destination) as connection:
        by_death = dead or state is State.DEAD
        if by_death:
            entries = list_dead(connection, destination_id=destination, after=place, limit=limit)
        elif state is not None and not state.is_terminal:
            entries = list_waiting(connection, destination_id=destination, states=[state], after=place, limit=limit)
        elif destination is None or waiting:
            entries = list_waiting(connection, destination_id=destination, after=place, limit=limit)
        else:
            states = ALL_STATES if state is None else (state,)
            entries = list_of_destination(connection, destination, states=states, after=place, limit=limit)
        ids = [entry.delivery_id for entry in entries]
        answers = last_answers(connection, ids) if by_death and as_json and ids else None
    following = _following(entries, limit, by_death=by_death)
    if as_json:
        print_json(
            {"deliveries": [_plain(entry) | _last_answer(entry, answers) for entry in entries], "after": following}
        )
        return
    _print_dead(entries) if by_death else _print_entries(entries)
    if following is not None:
        print(f"more: --after {following}", file=sys.stderr)


def show(delivery_id: str, as_json: AsJson = False) -> None:
    """One delivery with its event, its dispatches and its attempts."""
    with operator_connection(load_settings().postgres_conninfo) as connection:
        entry = find_delivery(connection, delivery_id)
        if entry is None:
            raise CommandError(f"no delivery {visible(delivery_id)}")
        event = event_of(connection, entry.event_id)
        dispatches = dispatches_of(connection, delivery_id, HISTORY_ROWS_MAX)
        attempts = attempts_of(connection, delivery_id, HISTORY_ROWS_MAX)
    if as_json:
        history = {"dispatches": dispatches, "attempts": [_plain_attempt(attempt) for attempt in attempts]}
        print_json({**_plain(entry), "event": event, **history})
        return
    print_fields((name, value) for name, value in _plain(entry).items() if value is not None)
    if event is not None:
        print_fields(
            [("content_type", event.content_type), ("payload", f"{_size(event)}, sha256 {event.payload_sha256}")]
        )
        print_fields((f"header {name}", value) for name, value in event.headers.items())
    print(f"\ndispatches, newest first (at most {HISTORY_ROWS_MAX})")
    print_columns(
        ("SEQ", "REASON", "AT", "MESSAGE"), [(d.dispatch_seq, d.reason, d.created_at, d.message_id) for d in dispatches]
    )
    print(f"\nattempts, newest first (at most {HISTORY_ROWS_MAX})")
    print_columns(
        ("ATTEMPT", "SEQ", "RESULT", "OUTCOME", "STATUS", "AMBIGUOUS", "SECONDS", "OF THESE", "AT", "WORKER", "ERROR"),
        [
            (
                a.attempt,
                a.dispatch_seq,
                a.result,
                a.outcome,
                a.status,
                "yes" if a.ambiguous else "no",
                f"{a.duration_seconds:.3f}",
                _phases(a),
                a.started_at,
                a.worker_id,
                a.error,
            )
            for a in attempts
        ],
    )
    _print_last_answer(attempts)


def _size(event: EventEntry) -> str:
    if event.payload_bytes is None:
        return f"removed at {visible(event.payload_removed_at)}"
    return f"{event.payload_bytes} bytes"


def _phases(attempt: AttemptEntry) -> str | None:
    """Where the time went, as far as it is known."""
    phases = ("dns", "connect", "tls", "first_byte")
    seconds = {phase: getattr(attempt, f"{phase}_seconds") for phase in phases}
    return " ".join(f"{phase} {value:.3f}" for phase, value in seconds.items() if value is not None) or None


def _print_last_answer(attempts: list[AttemptEntry]) -> None:
    """What the receiver said last, which is most often what there is to mend."""
    last = next((attempt for attempt in attempts if attempt.status is not None), None)
    if last is None:
        return
    print(f"\nanswer to attempt {last.attempt}: {last.status}")
    print_fields((last.response_headers or {}).items())
    if last.response_excerpt:
        print(visible(last.response_excerpt.decode(errors="replace")))


def _cursor(text: str | None) -> Cursor:
    if text is None:
        return BEGINNING
    try:
        return Cursor.parse(text)
    except ValueError:
        raise UsageError(f"--after {visible(text)}: take the cursor that the page before printed") from None


def _following(entries: list[DeliveryEntry], limit: int, *, by_death: bool) -> str | None:
    if len(entries) < limit:
        return None
    last = entries[-1]
    time = last.settled_at if by_death else last.created_at
    return None if time is None else str(Cursor(time, last.delivery_id))


def _plain(entry: DeliveryEntry) -> dict[str, Any]:
    return {**asdict(entry), "waits_for": entry.waits_for, "looked_at_next": entry.looked_at_next}


def _last_answer(entry: DeliveryEntry, answers: dict[str, AttemptEntry] | None) -> dict[str, Any]:
    """Dead ones are shown with what the receiver said last."""
    if answers is None:
        return {}
    answer = answers.get(entry.delivery_id)
    return {"last_answer": None if answer is None else _plain_attempt(answer)}


def _plain_attempt(attempt: AttemptEntry) -> dict[str, Any]:
    excerpt = attempt.response_excerpt
    return {**asdict(attempt), "response_excerpt": None if excerpt is None else excerpt.decode(errors="replace")}


def _print_entries(entries: list[DeliveryEntry]) -> None:
    print_columns(
        ("DELIVERY", "DESTINATION", "EVENT", "STATE", "ATTEMPTS", "WAITS FOR", "NEXT LOOK", "LAST"),
        [
            (
                entry.delivery_id,
                entry.destination_id,
                entry.event_id,
                entry.state,
                entry.attempt,
                entry.waits_for,
                _next_look(entry),
                _last(entry),
            )
            for entry in entries
        ],
    )


def _next_look(entry: DeliveryEntry) -> datetime | str | None:
    if entry.looked_at_next is None and not entry.state.is_terminal:
        return "when resumed" if entry.destination_enabled else "when enabled"
    return entry.looked_at_next


def _print_dead(entries: list[DeliveryEntry]) -> None:
    print_columns(
        ("DELIVERY", "DESTINATION", "EVENT", "ATTEMPTS", "DIED", "LAST", "ERROR"),
        [
            (e.delivery_id, e.destination_id, e.event_id, e.attempt, e.settled_at, _last(e), e.last_error)
            for e in entries
        ],
    )


def _last(entry: DeliveryEntry) -> str | None:
    if entry.last_outcome is None or entry.last_status is None:
        return entry.last_outcome
    return f"{entry.last_outcome} ({entry.last_status})"
