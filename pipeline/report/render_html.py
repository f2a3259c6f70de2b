"""The report as one HTML file that needs nothing else: counts, differences, and plots as inline SVG."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from html import escape
from typing import TextIO

import psycopg

from pipeline.ledger.report_tables import count_rows, first_findings
from pipeline.report.compare import kind_of
from pipeline.report.counting import Report
from pipeline.report.svg import Bar, stacked_bars

IDS_MAX = 1_000
STAGES = ("admitted", "in_topic", "attempted", "succeeded", "dead", "waiting", "in_audit")
STACKED = {"succeeded": "#2e7d32", "dead": "#b3261e", "waiting": "#e0a100"}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c1b1f }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } code { font-size: .9em }
.good { color: #2e7d32 } .bad { color: #b3261e } summary { cursor: pointer } svg { max-width: 100%; height: auto }
"""


def write_html(report: Report, session: psycopg.Connection, out: TextIO) -> None:
    mark = report.watermark
    verdict = report.verdict
    buckets: dict[datetime, Counter[str]] = {}
    destinations: dict[str, Counter[str]] = {}
    for row in count_rows(session):
        stages = {name: getattr(row, name) for name in STAGES}
        buckets.setdefault(row.bucket, Counter()).update(stages)
        destinations.setdefault(row.destination_id, Counter()).update(stages)
    title = "Reconciliation"
    out.write(
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style>\n<h1>{title}</h1>\n"
    )
    state = (
        ("good", "no difference") if verdict.is_exact else ("bad", f"{sum(verdict.differences.values())} differences")
    )
    out.write(f'<p class="{state[0]}"><strong>{state[1]}</strong></p>\n')
    out.write(
        f"<p>Admitted from {_moment(report.scope.since)} to {_moment(report.scope.until)}. The ledger as of "
        f"{_moment(mark.taken_at)}, LSN <code>{escape(mark.ledger_lsn)}</code>, "
        f"{'all of it published' if mark.is_settled else '<b>not all of it published yet</b>'}; "
        f"{report.messages} messages of {len(mark.places)} partitions.</p>\n"
    )
    out.write(stacked_bars([Bar(_moment(at), dict(counts)) for at, counts in sorted(buckets.items())], STACKED))
    out.write("\n<h2>Destinations</h2>\n")
    _write_table(destinations, out)
    for heading, counts in (("Differences", verdict.differences), ("On the way", verdict.in_flight)):
        if counts:
            out.write(f"<h2>{heading}</h2>\n")
        for name, count in counts.items():
            _write_findings(session, name, count, out)
    out.write("</html>\n")


def _write_table(destinations: dict[str, Counter[str]], out: TextIO) -> None:
    head = "".join(f'<th class="n">{name.replace("_", " ")}</th>' for name in STAGES)
    out.write(f"<table><tr><th>destination</th>{head}</tr>\n")
    for name, counts in sorted(destinations.items()):
        cells = "".join(f'<td class="n">{counts[stage]}</td>' for stage in STAGES)
        out.write(f"<tr><td>{escape(name)}</td>{cells}</tr>\n")
    out.write("</table>\n")


def _write_findings(session: psycopg.Connection, name: str, count: int, out: TextIO) -> None:
    kind = kind_of(name)
    mend = f" To mend: <code>{escape(kind.mend)}</code>." if kind.mend else ""
    out.write(f"<details><summary>{count} <b>{escape(name)}</b>: {escape(kind.meaning)}.{mend}</summary><table>\n")
    for f in first_findings(session, name, IDS_MAX):
        values = (f.delivery_id, f.destination_id, f.dispatch_seq, f.attempt, f.place, f.detail)
        cells = "".join(f"<td>{escape('' if value is None else str(value))}</td>" for value in values)
        out.write(f"<tr>{cells}</tr>\n")
    more = f"<p>and {count - IDS_MAX} more: see --json</p>" if count > IDS_MAX else ""
    out.write(f"</table>{more}</details>\n")


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S%z")
