"""The counts as CSV: a row for each bucket and destination, a column for each reason to wait that occurs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from typing import TextIO

from pipeline.ledger.report_tables import CountRow

COLUMNS = ("bucket", "destination_id", "admitted", "in_topic", "attempted", "succeeded", "dead", "waiting", "in_audit")


def write_csv(counts: Callable[[], Iterable[CountRow]], out: TextIO) -> None:
    """``counts`` is asked twice: first for the reasons, so that no row must be kept."""
    reasons = sorted({reason for row in counts() for reason in row.waiting_by_reason})
    writer = csv.writer(out)
    writer.writerow([*COLUMNS, *(f"waiting_{reason}" for reason in reasons)])
    for row in counts():
        values = [row.bucket.isoformat(), *(getattr(row, name) for name in COLUMNS[1:])]
        writer.writerow([*values, *(row.waiting_by_reason.get(reason, 0) for reason in reasons)])
