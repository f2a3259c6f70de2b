"""The report for people, and as one object for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import msgspec

from pipeline.demo.report import Percentiles, Report


def as_json(report: Report) -> str:
    """One line: the fields of Report, and `exact`."""
    return msgspec.json.encode({"exact": report.is_exact, **asdict(report)}).decode()


def as_text(report: Report) -> str:
    """The figures, a line for each destination, and one for each finding."""
    kills = ", ".join(f"{kill.component} after {kill.receipts} deliveries" for kill in report.kills) or "none"
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(report.dispatch_reasons.items()))
    off = {
        "lost": report.lost,
        "identity changes": report.identity_changes,
        "body mismatches": report.body_mismatches,
        "invalid signatures": report.invalid_signatures,
        "quarantined": report.quarantined,
    }
    rows = {
        "admitted": f"{report.admitted} deliveries of {report.events} events",
        "  = succeeded": f"{report.succeeded}",
        "  + dead": f"{report.dead}",
        "  + waiting": _waiting(report),
        "attempts": f"{report.attempts}, {report.lease_expired} of them lease_expired, {report.late} late",
        "received": f"{report.receiver_distinct}, taken over {report.receiver_effects}, repeats {report.receiver_repeats}",
        "dispatched": f"{report.dispatches}: {reasons}",
        "rolled back": f"{report.rolled_back} events, seen {report.rolled_back_seen} times",
        "admitted again": f"{report.readmitted} deliveries, called new {report.duplicates_admitted}",
        "off": ", ".join(f"{what} {count}" for what, count in off.items()),
        "commit to receipt": _latency(report.commit_to_receipt_ms),
        "  before the kills": _latency(report.commit_to_receipt_ms_before_kills),
        "SIGKILL": kills,
        "took": f"{report.elapsed_seconds:.1f} s",
    }
    lines = [f"{label:<20}{value}" for label, value in rows.items()]
    lines += ["", *_destination_lines(report), ""]
    if report.is_exact:
        return "\n".join([*lines, "exact: every witness agrees on every delivery"])
    kinds = Counter(finding.kind for finding in report.findings)
    lines.append("NOT EXACT: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    lines += [f"  {finding.kind}  {finding.id}  {finding.reason}" for finding in report.findings]
    return "\n".join(lines)


def _waiting(report: Report) -> str:
    """Receivers that never answer keep their deliveries waiting for a next try, which a demo does not wait for."""
    at = ", ".join(row.destination_id for row in report.destinations if row.waiting)
    return f"{report.waiting}, for their next try at {at}" if at else "0"


def _destination_lines(report: Report) -> list[str]:
    """A table: the ledger's side, then the receiver's."""
    titles = ("admitted", "succeeded", "dead", "waiting", "distinct", "repeats", "effects")
    width = max(len(row.destination_id) for row in report.destinations) + 2
    lines = [f"{'destination':<{width}}{'receiver':<17}" + "".join(f"{title:>11}" for title in titles)]
    for row in report.destinations:
        numbers = "".join(f"{getattr(row, title):>11}" for title in titles)
        lines.append(f"{row.destination_id:<{width}}{row.behaviour:<17}{numbers}")
    return lines


def _latency(percentiles: Percentiles) -> str:
    if percentiles.p50 is None:
        return "no sample"
    return f"p50 {percentiles.p50} ms, p95 {percentiles.p95} ms, p99 {percentiles.p99} ms"
