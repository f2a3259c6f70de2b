"""What every part of a run works with, and reading a topic under its cursors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg

from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.replay import Advance, Phase
from pipeline.ledger.runs import count_run
from pipeline.offsets.places import Place, Stretch
from pipeline.replay.dispatch_messages import Refused
from pipeline.replay.plan import Plan
from pipeline.replay.progress import Progress
from pipeline.replay.quarantining import Quarantining
from pipeline.replay.topic_scan import Batch, TopicScan
from pipeline.settings import Settings
from topics.declarations import QUARANTINE


@dataclass(frozen=True, slots=True)
class Work:
    """A run in the hands of one process."""

    settings: Settings
    ledger: psycopg.Connection
    run_id: UUID
    plan: Plan
    driver: str
    progress: Progress
    report: Callable[[Progress], None]

    def may_go_on(self, phase: Phase) -> bool:
        """First in a transaction: nothing else is wished, and nobody changes that before it ends."""
        return ledger_replay.drive(self.ledger, self.run_id, self.driver) == ("run", phase)

    def count(self) -> None:
        count_run(self.ledger, self.run_id, self.progress.counts())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that was looked through: what goes into quarantine, and what to do in the transaction that moves the cursors."""

    refused: Sequence[Refused]
    act: Callable[[], None]


def group_of(settings: Settings, run_id: UUID) -> str:
    """The run's own consumer group."""
    return settings.name(f"replay.{run_id}")


def drain(work: Work, topic: str, phase: Phase, prepare: Callable[[Batch], Prepared]) -> bool:
    """Read a topic to the end of its ranges. False where something else is wished. Raises ReplayError."""
    stretches = {
        Place(c.topic, c.partition): Stretch(c.next_offset, c.end_offset)
        for c in ledger_replay.cursors(work.ledger, work.run_id)
        if c.topic == topic
    }
    with (
        TopicScan(work.settings.kafka, group_of(work.settings, work.run_id), stretches) as scan,
        Quarantining(work.settings.kafka, work.settings.name(QUARANTINE), stretches) as quarantine,
    ):
        for batch in scan.batches():
            prepared = prepare(batch)
            # Before the cursor passes them. Done again after a crash, it finds its own entries.
            quarantine.put(work.ledger, prepared.refused)
            with work.ledger.transaction():
                if not work.may_go_on(phase):
                    return False
                if batch.reached:
                    prepared.act()
                    _advance(work, batch, prepared.refused)
                    work.count()
            scan.commit(batch.reached)
            work.report(work.progress)
    return True


def _advance(work: Work, batch: Batch, refused: Sequence[Refused]) -> None:
    messages = Counter(place for place, _ in batch.messages)
    refusals = Counter(entry.place for entry in refused)
    for place, offset in batch.reached.items():
        moved = Advance(
            topic=place.topic,
            partition=place.partition,
            next_offset=offset,
            messages=messages[place],
            refused=refusals[place],
            removed=batch.removed.get(place, 0),
        )
        ledger_replay.advance(work.ledger, work.run_id, moved)
    work.progress.read(messages=sum(messages.values()), refused=len(refused), removed=sum(batch.removed.values()))
