"""How far a run is, as its run row counts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

import psycopg

from pipeline.ledger import replay as ledger_replay

DONE = ("replayed", "rebuilt", "advanced")


@dataclass(slots=True)
class Progress:
    """Items by verdict, and messages read. What is not in `waiting` is decided."""

    items: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    refused: int = 0
    removed: int = 0
    offsets_read: int = 0
    offsets: int = 0

    @classmethod
    def of(cls, ledger: psycopg.Connection, run_id: UUID) -> Self:
        """As the ledger has it, counted anew."""
        cursors = ledger_replay.cursors(ledger, run_id)
        return cls(
            items=ledger_replay.counts_of_items(ledger, run_id),
            messages=sum(c.messages for c in cursors),
            refused=sum(c.refused for c in cursors),
            removed=sum(c.removed for c in cursors),
            offsets_read=sum(c.next_offset - c.begin_offset for c in cursors),
            offsets=sum(c.end_offset - c.begin_offset for c in cursors),
        )

    @property
    def waiting(self) -> int:
        return self.items.get("waiting", 0)

    @property
    def done(self) -> int:
        return sum(self.items.get(verdict, 0) for verdict in DONE)

    @property
    def skipped(self) -> dict[str, int]:
        """By reason."""
        return {verdict: count for verdict, count in self.items.items() if verdict not in (*DONE, "waiting")}

    def take(self, verdicts: dict[str, int]) -> None:
        """Items that have come, as they were judged at once."""
        for verdict, count in verdicts.items():
            self.items[verdict] = self.items.get(verdict, 0) + count

    def read(self, *, messages: int, refused: int, removed: int) -> None:
        self.messages += messages
        self.refused += refused
        self.removed += removed

    def decide(self, verdicts: dict[str, int]) -> None:
        """These were waiting."""
        for verdict, count in verdicts.items():
            self.items[verdict] = self.items.get(verdict, 0) + count
            self.items["waiting"] = self.waiting - count

    def counts(self) -> dict[str, Any]:
        """For the run row."""
        found: dict[str, Any] = {
            **{verdict: self.items[verdict] for verdict in DONE if verdict in self.items},
            "skipped": sum(self.skipped.values()),
            "waiting": self.waiting,
            **{f"skipped_{reason}": count for reason, count in sorted(self.skipped.items())},
        }
        if self.offsets:
            found |= {"messages": self.messages, "quarantined": self.refused, "removed_by_retention": self.removed}
        return found
