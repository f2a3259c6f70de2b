"""The first half of a run: what it is about becomes items, each batch in one transaction with the cursor that read it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.reports import BEGINNING
from pipeline.replay.dispatch_messages import Named, Refused, sort_messages
from pipeline.replay.errors import ReplayError
from pipeline.replay.topic_scan import Batch
from pipeline.replay.work import Prepared, Work, drain
from topics.declarations import DISPATCH
from topics.message_headers import headers_of

PAGE_ROWS: Final = 2_000
YOUNG_SECONDS: Final = 60.0
"""A message of this age may be of a delivery whose commit is not visible yet: the stream can overtake it."""
PATIENCE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.25

Page = list[tuple[str, datetime, str]]


def select_from_topic(work: Work) -> bool:
    """Whether all is read; False where something else is wished. Raises ReplayError."""

    def prepare(batch: Batch) -> Prepared:
        found = sort_messages(batch.messages)
        foreign = _foreign(work, found.named)
        delivery_ids = [entry.dispatch.delivery_id for entry in found.named]
        return Prepared([*found.broken, *foreign], lambda: _take(work, delivery_ids))

    return drain(work, work.settings.name(DISPATCH), "select", prepare)


def select_from_ledger(work: Work) -> bool:
    """Whether all is taken; False where something else is wished."""
    while True:
        with work.ledger.transaction():
            if not work.may_go_on("select"):
                return False
            after = _cursor(work)
            page = ledger_replay.page(
                work.ledger,
                _page_name(work),
                work.run_id,
                work.plan.choice,
                until=work.plan.until,
                after=after,
                rows=PAGE_ROWS,
            )
            if page:
                _take(work, [delivery_id for _, _, delivery_id in page])
                _move(work, *page[-1])
                work.count()
            elif not _next_destination(work, after):
                return True
        work.report(work.progress)


def _take(work: Work, delivery_ids: Sequence[str]) -> None:
    taken = ledger_replay.select_items(
        work.ledger, work.run_id, delivery_ids, work.plan.choice, is_listed=work.plan.id_list is not None
    )
    work.progress.take(taken)


def _foreign(work: Work, named: list[Named]) -> list[Refused]:
    """Those of no delivery here, taken out of `named`."""
    unknown = _unknown(work, named)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(_is_young(named[place]) for place in unknown) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        unknown = _unknown(work, named)
    reason = "the ledger has no such delivery for this destination (after a restore: outrider replay rebuild)"
    found = [
        Refused(named[place].place, named[place].message, reason, headers_of(named[place].message)) for place in unknown
    ]
    for place in sorted(unknown, reverse=True):
        del named[place]
    return found


def _unknown(work: Work, named: Sequence[Named]) -> list[int]:
    return ledger_replay.unknown_of(work.ledger, [entry.key for entry in named]) if named else []


def _is_young(entry: Named) -> bool:
    timestamp_ms = entry.message.timestamp()[1]
    return datetime.now(UTC).timestamp() - timestamp_ms / 1000 < YOUNG_SECONDS


def _page_name(work: Work) -> Literal["list", "ledger", "dead"]:
    if work.plan.source == "dead":
        return "dead"
    return "ledger" if work.plan.id_list is None else "list"


def _next_destination(work: Work, after: dict[str, Any]) -> bool:
    if _page_name(work) != "ledger":
        return False
    destination_id = ledger_replay.next_destination(work.ledger, work.plan.choice, after["after_destination"])
    if destination_id is None:
        return False
    _move(work, destination_id, BEGINNING.time, BEGINNING.delivery_id)
    return True


def _move(work: Work, destination_id: str, moment: datetime, delivery_id: str) -> None:
    after = {"after_destination": destination_id, "after_time": moment, "after_id": delivery_id}
    ledger_replay.move_ledger_cursor(work.ledger, work.run_id, after)


def _cursor(work: Work) -> dict[str, Any]:
    found = ledger_replay.standing(work.ledger, work.run_id)
    if found is None:
        raise ReplayError(f"run {work.run_id} has lost its record")
    return {"after_destination": found.after_destination, "after_time": found.after_time, "after_id": found.after_id}
