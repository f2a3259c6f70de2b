"""Repairing what a report found, by the statement with which an operator retries: a run, with one run for each page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psycopg

from pipeline.cli.errors import CommandError
from pipeline.cli.recorded import recorded
from pipeline.ledger import operator_deliveries as acts
from pipeline.ledger.operator import Act, operator_connection
from pipeline.ledger.report_tables import repairable_counts, repairable_dispatches, take_repairable
from pipeline.report.compare import REPAIR, kind_of
from pipeline.settings import Settings

KIND = "reconcile.repair"
SUCCEEDED = "not_at_receiver"


@dataclass(frozen=True, slots=True)
class Repair:
    by: Act
    force: bool
    """Dispatch again what succeeded and is not in its receiver's list."""


def preview_repair(session: psycopg.Connection, found: Iterable[str], wanted: Repair) -> Iterator[str]:
    """What would be done about the kinds of findings there are, and what other commands do."""
    counts = take_repairable(session)
    for kind, count in counts.items():
        if kind == SUCCEEDED and not wanted.force:
            yield f"{count} {kind}: succeeded, so only with --force"
        else:
            yield f"{count} {kind}: can be dispatched again"
    if not counts:
        yield "nothing can be dispatched again"
    for difference in map(kind_of, found):
        if difference.name not in counts and difference.mend is not None:
            elsewhere = "settled, or moved on" if difference.mend == REPAIR else difference.mend
            yield f"{difference.name}: {elsewhere}"


def repair(
    settings: Settings, session: psycopg.Connection, wanted: Repair, say: Callable[[str], None]
) -> Iterator[str]:
    """Dispatch again, page by page; each delivery only where it still is as it was found."""
    counts = _allowed(session, wanted)
    with (
        operator_connection(settings.postgres_conninfo) as ledger,
        recorded(
            ledger, KIND, wanted.by, parameters={"force": wanted.force}, before={"repairable": counts}, after=None
        ) as run,
    ):
        run.counts = {"selected": sum(counts.values()), "moved": 0}
        try:
            for kind in counts:
                state = "succeeded" if kind == SUCCEEDED else "enqueued"
                for page in repairable_dispatches(session, kind, acts.PAGE_ROWS):
                    moved = acts.retry_as_found(ledger, page, state, wanted.by)
                    run.counts["moved"] += len(moved)
                    say(f"dispatched {run.counts['moved']} of {run.counts['selected']}")
        except KeyboardInterrupt:
            done = f"{run.counts['moved']} of {run.counts['selected']} were dispatched again"
            raise CommandError(
                f"interrupted: {done}, see run {run.run_id}; the same command goes on with the rest"
            ) from None
        yield f"run {run.run_id}: dispatched {run.counts['moved']} of {run.counts['selected']} again"


def _allowed(session: psycopg.Connection, wanted: Repair) -> dict[str, int]:
    return {kind: rows for kind, rows in repairable_counts(session).items() if kind != SUCCEEDED or wanted.force}
