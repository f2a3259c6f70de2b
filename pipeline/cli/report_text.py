"""The report for people: counts, differences with the first ids, and what puts them right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psycopg

from pipeline.cli.output import print_columns, print_fields, visible
from pipeline.ledger.report_tables import CountRow, FindingRow, count_rows, first_findings
from pipeline.report.compare import kind_of
from pipeline.report.counting import Report

ROWS_MAX = 200
IDS_MAX = 20
HEADER = (
    "BUCKET",
    "DESTINATION",
    "ADMITTED",
    "IN TOPIC",
    "ATTEMPTED",
    "SUCCEEDED",
    "DEAD",
    "WAITING",
    "IN AUDIT",
    "WHY",
)


def print_report(report: Report, session: psycopg.Connection) -> None:
    mark = report.watermark
    reached = f"to LSN {mark.confirmed_lsn}" if mark.confirmed_lsn else "unknown, there is no such slot"
    print_fields(
        [
            ("admitted", f"{visible(report.scope.since)} to {visible(report.scope.until)}"),
            ("ledger", f"as of {visible(mark.taken_at)}, LSN {mark.ledger_lsn}"),
            ("published", f"{'all of it' if mark.is_settled else 'NOT all of it yet'}; the slot {reached}"),
            ("topics", f"{report.messages} messages, to captured ends in {len(mark.places)} partitions"),
            *([("retention", f"messages before {visible(mark.kept_since)} may be gone")] if mark.kept_since else []),
            *([("receiver", f"{report.receiver_ids} ids")] if report.receiver_ids is not None else []),
        ]
    )
    print()
    _print_counts(session)
    for title, counts in (("on the way", report.verdict.in_flight), ("differences", report.verdict.differences)):
        for name, count in counts.items():
            print(f"\n{title}: {count} {name}: {kind_of(name).meaning}")
            _print_findings(first_findings(session, name, IDS_MAX), count)
            if (mend := kind_of(name).mend) is not None:
                print(f"  to mend: {mend}")
    print(f"\n{'no difference' if report.verdict.is_exact else 'DIFFERENT: all ids are in --json'}")


def _print_counts(session: psycopg.Connection) -> None:
    total: Counter[str] = Counter()
    why: Counter[str] = Counter()
    shown: list[tuple[object, ...]] = []
    rows = 0
    for row in count_rows(session):
        rows += 1
        total.update({name: getattr(row, name) for name in _SUMMED})
        why.update(row.waiting_by_reason)
        if len(shown) < ROWS_MAX:
            shown.append((visible(row.bucket), row.destination_id, *_cells(row)))
    sums = tuple(total[name] for name in _SUMMED)
    print_columns(HEADER, [*shown, ("total", f"{rows} rows", *sums, _reasons(why))])
    if rows > len(shown):
        print(f"and {rows - len(shown)} rows more: see --csv")


_SUMMED = ("admitted", "in_topic", "attempted", "succeeded", "dead", "waiting", "in_audit")


def _cells(row: CountRow) -> Iterator[object]:
    yield from (getattr(row, name) for name in _SUMMED)
    yield _reasons(row.waiting_by_reason)


def _reasons(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))


def _print_findings(findings: list[FindingRow], count: int) -> None:
    for f in findings:
        numbers = [
            f"dispatch {f.dispatch_seq}" if f.dispatch_seq is not None else "",
            f"attempt {f.attempt}" if f.attempt else "",
        ]
        words = [f.delivery_id or "no id", f.destination_id or "", *numbers, f.place or "", f.detail or ""]
        print("  " + visible("  ".join(word for word in words if word)))
    if count > len(findings):
        print(f"  and {count - len(findings)} more")
