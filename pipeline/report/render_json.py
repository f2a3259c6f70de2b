"""The report as one JSON object, written piece by piece: its lists may be long."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any, TextIO

from pipeline.ledger.report_tables import CountRow, FindingRow
from pipeline.report.counting import Report


def write_json(report: Report, counts: Iterable[CountRow], findings: Iterable[FindingRow], out: TextIO) -> None:
    head = {
        "is_exact": report.verdict.is_exact,
        "since": report.scope.since,
        "until": report.scope.until,
        "bucket_seconds": report.scope.bucket.total_seconds(),
        "destination_id": report.scope.destination_id,
        "watermark": asdict(report.watermark),
        "messages": report.messages,
        "receiver_ids": report.receiver_ids,
        "differences": report.verdict.differences,
        "in_flight": report.verdict.in_flight,
    }
    out.write(_text(head)[:-1])
    lists: tuple[tuple[str, Iterable[CountRow | FindingRow]], ...] = (("counts", counts), ("findings", findings))
    for name, rows in lists:
        out.write(f', "{name}": [')
        for number, row in enumerate(rows):
            out.write((", " if number else "") + _text(asdict(row)))
        out.write("]")
    out.write("}\n")


def _text(value: object) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON for {type(value).__name__}")
