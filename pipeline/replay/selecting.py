"""The first half of a run: what it is about becomes items, each batch in one transaction with the cursor that read it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

import psycopg

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.replay import Advance
from pipeline.ledger.reports import BEGINNING
from pipeline.ledger.runs import count_run
from pipeline.offsets.places import Place, Stretch
from pipeline.replay.dispatch_messages import Named, Refused, sort_messages
from pipeline.replay.errors import ReplayError
from pipeline.replay.plan import Plan
from pipeline.replay.progress import Progress
from pipeline.replay.quarantining import Quarantining
from pipeline.replay.topic_scan import Batch, TopicScan
from pipeline.settings import Settings
from topics.declarations import QUARANTINE

PAGE_ROWS: Final = 2_000
YOUNG_SECONDS: Final = 60.0
"""A message of this age may be of a delivery whose commit is not visible yet: the stream can overtake it."""
PATIENCE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.25


def group_of(settings: Settings, run_id: UUID) -> str:
    """The run's own consumer group."""
    return settings.name(f"replay.{run_id}")


@dataclass(frozen=True, slots=True)
class TopicSelecting:
    settings: Settings
    ledger: psycopg.Connection
    run_id: UUID
    plan: Plan
    driver: str
    progress: Progress
    report: Callable[[Progress], None]

    def work(self) -> bool:
        """Whether all is read; False where something else is wished. Raises ReplayError."""
        stretches = {
            Place(c.topic, c.partition): Stretch(c.next_offset, c.end_offset)
            for c in ledger_replay.cursors(self.ledger, self.run_id)
        }
        with (
            TopicScan(self.settings.kafka, group_of(self.settings, self.run_id), stretches) as scan,
            Quarantining(self.settings.kafka, self.settings.name(QUARANTINE), stretches) as quarantine,
        ):
            for batch in scan.batches():
                found = sort_messages(batch.messages)
                foreign = self._foreign(found.named)
                refused = [*found.broken, *foreign]
                # Before the cursor passes them. Done again after a crash, it finds its own entries.
                quarantine.put(self.ledger, refused)
                if not self._take(batch, found.named, refused):
                    return False
                scan.commit(batch.reached)
                self.report(self.progress)
        return True

    def _take(self, batch: Batch, named: Sequence[Named], refused: Sequence[Refused]) -> bool:
        """Items and cursors in one transaction; False where something else is wished, and then nothing is changed."""
        messages = Counter(place for place, _ in batch.messages)
        refusals = Counter(entry.place for entry in refused)
        with self.ledger.transaction():
            if ledger_replay.drive(self.ledger, self.run_id, self.driver) != ("run", "select"):
                return False
            if not batch.reached:
                return True
            taken = ledger_replay.select_items(
                self.ledger,
                self.run_id,
                [entry.dispatch.delivery_id for entry in named],
                self.plan.choice,
                is_listed=self.plan.id_list is not None,
            )
            for place, offset in batch.reached.items():
                moved = Advance(
                    topic=place.topic,
                    partition=place.partition,
                    next_offset=offset,
                    messages=messages[place],
                    refused=refusals[place],
                    removed=batch.removed.get(place, 0),
                )
                ledger_replay.advance(self.ledger, self.run_id, moved)
            self.progress.take(taken, messages=sum(messages.values()), refused=len(refused))
            self.progress.removed += sum(batch.removed.values())
            count_run(self.ledger, self.run_id, self.progress.counts())
        return True

    def _foreign(self, named: list[Named]) -> list[Refused]:
        """Those of no delivery here, taken out of `named`."""
        unknown = self._unknown(named)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(_is_young(named[place]) for place in unknown) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            unknown = self._unknown(named)
        found = [
            Refused(
                named[place].place,
                named[place].message,
                "the ledger has no such delivery for this destination (after a restore: outrider replay rebuild)",
            )
            for place in unknown
        ]
        for place in sorted(unknown, reverse=True):
            del named[place]
        return found

    def _unknown(self, named: Sequence[Named]) -> list[int]:
        return ledger_replay.unknown_of(self.ledger, [entry.key for entry in named]) if named else []


@dataclass(frozen=True, slots=True)
class LedgerSelecting:
    settings: Settings
    ledger: psycopg.Connection
    run_id: UUID
    plan: Plan
    driver: str
    progress: Progress
    report: Callable[[Progress], None]

    def work(self) -> bool:
        """Whether all is taken; False where something else is wished."""
        while True:
            with self.ledger.transaction():
                if ledger_replay.drive(self.ledger, self.run_id, self.driver) != ("run", "select"):
                    return False
                after = self._cursor()
                page = self._page(after)
                if page:
                    self._take(page)
                elif not self._next_destination(after):
                    return True
            self.report(self.progress)

    @property
    def _name(self) -> Literal["list", "ledger", "dead"]:
        if self.plan.source == "dead":
            return "dead"
        return "ledger" if self.plan.id_list is None else "list"

    def _page(self, after: dict[str, Any]) -> list[tuple[str, datetime, str]]:
        return ledger_replay.page(
            self.ledger, self._name, self.run_id, self.plan.choice, until=self.plan.until, after=after, rows=PAGE_ROWS
        )

    def _take(self, page: list[tuple[str, datetime, str]]) -> None:
        taken = ledger_replay.select_items(
            self.ledger,
            self.run_id,
            [delivery_id for _, _, delivery_id in page],
            self.plan.choice,
            is_listed=self.plan.id_list is not None,
        )
        self._move(*page[-1])
        self.progress.take(taken)
        count_run(self.ledger, self.run_id, self.progress.counts())

    def _next_destination(self, after: dict[str, Any]) -> bool:
        if self._name != "ledger":
            return False
        destination_id = ledger_replay.next_destination(self.ledger, self.plan.choice, after["after_destination"])
        if destination_id is None:
            return False
        self._move(destination_id, BEGINNING.time, BEGINNING.delivery_id)
        return True

    def _move(self, destination_id: str, moment: datetime, delivery_id: str) -> None:
        after = {"after_destination": destination_id, "after_time": moment, "after_id": delivery_id}
        ledger_replay.move_ledger_cursor(self.ledger, self.run_id, after)

    def _cursor(self) -> dict[str, Any]:
        found = ledger_replay.standing(self.ledger, self.run_id)
        if found is None:
            raise ReplayError(f"run {self.run_id} has lost its record")
        return {
            "after_destination": found.after_destination,
            "after_time": found.after_time,
            "after_id": found.after_id,
        }


def _is_young(entry: Named) -> bool:
    timestamp_ms = entry.message.timestamp()[1]
    return datetime.now(UTC).timestamp() - timestamp_ms / 1000 < YOUNG_SECONDS
