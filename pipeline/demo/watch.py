"""Looks at the ledger and at the receivers' record while the demo runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from psycopg import Connection
from psycopg.rows import TupleRow

from pipeline.demo.application import Notes
from pipeline.demo.destinations import Target
from pipeline.demo.ledger_view import count_states
from pipeline.demo.picture import DestinationView, View
from pipeline.demo.receipts import Receipt, ReceiptTail


class Watch:
    """Every `look` reads what is new. Not for several threads at once."""

    def __init__(
        self,
        operator: Connection[TupleRow],
        tail: ReceiptTail,
        *,
        targets: Sequence[Target],
        notes: Notes,
        planned: int,
    ) -> None:
        self._operator = operator
        self._tail = tail
        self._targets = targets
        self._notes = notes
        self._planned = planned
        self._looked = time.monotonic()
        self.receipts: list[Receipt] = []
        self._seen: set[tuple[str, str]] = set()
        self._distinct: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    @property
    def received(self) -> int:
        """Deliveries that have reached a receiver, as of the last look."""
        return len(self._seen)

    def read_receipts(self) -> int:
        """Take in new lines of the record; returns how many."""
        new = list(self._tail.read())
        self.receipts += new
        for receipt in new:
            self._total[receipt.destination_id] += 1
            key = receipt.destination_id, receipt.webhook_id
            if receipt.signature != "invalid" and key not in self._seen:
                self._seen.add(key)
                self._distinct[receipt.destination_id] += 1
        return len(new)

    def look(self) -> View:
        """One moment of the whole."""
        new = self.read_receipts()
        states = count_states(self._operator)
        now = time.monotonic()
        since, self._looked = now - self._looked, now
        return View(
            planned=self._planned,
            committed=len(self._notes.admissions),
            rolled_back=len(self._notes.rolled_back),
            received=self.received,
            requests_per_second=new / since if since > 0 else 0.0,
            destinations=[self._view(target, states.get(target.destination_id, {})) for target in self._targets],
        )

    def is_settled(self, view: View) -> bool:
        """Whether every delivery has ended, except where a destination lets it wait."""
        may_wait = {target.destination_id for target in self._targets if target.behaviour.settles is None}
        return all(row.open == 0 or row.destination_id in may_wait for row in view.destinations)

    def _view(self, target: Target, states: dict[str, int]) -> DestinationView:
        name = target.destination_id
        return DestinationView(
            destination_id=name,
            behaviour=type(target.behaviour).__name__,
            states=states,
            distinct=self._distinct[name],
            repeats=self._total[name] - self._distinct[name],
        )
