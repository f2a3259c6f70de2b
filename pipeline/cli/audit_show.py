"""``outrider audit show``: one delivery's whole story."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import typer

from pipeline.audit.story import Chapter, Facts, Story, tell
from pipeline.cli.acting import AsJson
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_fields, print_json, visible
from pipeline.ledger.audit import records_of_delivery
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.story import acts_on, admission_of, logged_attempts_of, outbox_of
from pipeline.settings import load_settings

ENTRIES_MAX = 1_000
"""Of each kind; a delivery has at most a few dozen."""


def show(delivery_id: str, as_json: AsJson = False) -> None:
    """What happened to one delivery, in order, by the ledger and by the audit. Exit code 1 where they contradict."""
    story = tell(_facts(delivery_id))
    if as_json:
        print_json({**asdict(story), "is_consistent": not story.contradictions})
    else:
        _print(story)
    raise typer.Exit(1 if story.contradictions else 0)


def _facts(delivery_id: str) -> Facts:
    with operator_connection(load_settings().postgres_conninfo) as connection:
        admission = admission_of(connection, delivery_id)
        records = records_of_delivery(connection, delivery_id, ENTRIES_MAX)
        if admission is None and not records:
            raise CommandError(f"neither the ledger nor the audit knows a delivery {visible(delivery_id)}")
        if admission is None:
            return Facts(delivery_id=delivery_id, admission=None, records=records)
        return Facts(
            delivery_id=delivery_id,
            admission=admission,
            outbox=outbox_of(connection, delivery_id, ENTRIES_MAX),
            attempts=logged_attempts_of(connection, delivery_id, ENTRIES_MAX),
            records=records,
            acts=acts_on(connection, delivery_id, admission.destination_id, admission.created_at, ENTRIES_MAX),
        )


def _print(story: Story) -> None:
    print_fields(
        [
            ("delivery", story.delivery_id),
            ("state", story.state or "not in the ledger"),
            ("body_sha256", None if story.body_sha256 is None else story.body_sha256.hex()),
        ]
    )
    for chapter in story.chapters:
        print(f"\n{chapter.at.isoformat(sep=' ', timespec='milliseconds')}  {chapter.what}")
        print_fields((f"  {name}", _shown(value)) for name, value in _without_hash(chapter, story))
    for line in story.contradictions:
        print(f"\nCONTRADICTION: {visible(line)}")


def _without_hash(chapter: Chapter, story: Story) -> list[tuple[str, object]]:
    """The hash is told once, and again only where it is another."""
    return [(name, value) for name, value in chapter.facts.items() if value != story.body_sha256]


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value
