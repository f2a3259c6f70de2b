"""The minutes as one HTML page: a plot for each destination, and the newest minutes as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final

from examples.analytics.store import Minute

DESTINATIONS_MAX: Final = 40
TABLE_ROWS_MAX: Final = 200
WIDTH: Final = 720
HEIGHT: Final = 120
ONE_MINUTE: Final = timedelta(minutes=1)

_STYLE: Final = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222 }
svg { display: block; background: #fafafa }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }
td:nth-child(-n+3), th:nth-child(-n+3) { text-align: left }
.well { fill: #5a9e6f } .rest { fill: #c9553d } .p95 { fill: none; stroke: #2b4a7f; stroke-width: 2 }
"""


def render(minutes: Sequence[Minute], *, defects: int) -> str:
    """The page. Destinations with the most attempts come first, at most DESTINATIONS_MAX of them."""
    by_destination: dict[str, list[Minute]] = {}
    for row in minutes:
        by_destination.setdefault(row.destination_id, []).append(row)
    ranked = sorted(by_destination.items(), key=lambda item: -sum(row.attempts for row in item[1]))
    panels = "\n".join(_panel(name, rows) for name, rows in ranked[:DESTINATIONS_MAX])
    more = len(ranked) - DESTINATIONS_MAX
    notes = [f"{more} destinations with fewer attempts are not shown."] if more > 0 else []
    notes += [f"{defects} messages were no attempts: see table defect."] if defects else []
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Attempts by minute</title><style>{_STYLE}</style>
<h1>Attempts by minute</h1>
<p>Bars: attempts, green where they succeeded. Line: 95th percentile of their duration. Times are UTC.</p>
{"".join(f"<p>{escape(note)}</p>" for note in notes)}
{panels}
<h2>Newest minutes</h2>
{_table(minutes[-TABLE_ROWS_MAX:][::-1])}
</html>
"""


def _panel(name: str, rows: Sequence[Minute]) -> str:
    """One destination: all event types of a minute together, the slowest of their percentiles."""
    bars: dict[datetime, tuple[int, int, float]] = {}
    for row in rows:
        attempts, succeeded, slowest = bars.get(row.minute, (0, 0, 0.0))
        bars[row.minute] = (
            attempts + row.attempts,
            succeeded + row.succeeded,
            max(slowest, row.p95_seconds or 0.0),
        )
    first, last = min(bars), max(bars)
    step = WIDTH / ((last - first) // ONE_MINUTE + 1)
    most = max(attempts for attempts, _, _ in bars.values())
    slowest_of_all = max(seconds for _, _, seconds in bars.values()) or 1.0
    shapes, points = [], []
    for moment, (attempts, succeeded, seconds) in sorted(bars.items()):
        left = (moment - first) // ONE_MINUTE * step
        tall, well = HEIGHT * attempts / most, HEIGHT * succeeded / most
        shapes.append(_bar("rest", left, HEIGHT - tall, step, tall - well))
        shapes.append(_bar("well", left, HEIGHT - well, step, well))
        points.append(f"{left + step / 2:.1f},{HEIGHT * (1 - seconds / slowest_of_all):.1f}")
    total = sum(row.attempts for row in rows)
    success = sum(row.succeeded for row in rows) / total
    return f"""<h2>{escape(name)}</h2>
<p>{total} attempts from {first:%Y-%m-%d %H:%M} to {last:%H:%M}, {success:.1%} succeeded;
at most {most} a minute, 95th percentile up to {slowest_of_all:.3f} s</p>
<svg width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(shapes)}<polyline class="p95" points="{" ".join(points)}"/></svg>"""


def _bar(kind: str, left: float, top: float, step: float, height: float) -> str:
    width = max(step - 1, 0.5)
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}"/>'


def _table(rows: Iterable[Minute]) -> str:
    head = ("minute", "destination", "event type", "attempts", "success", "p50 s", "p95 s", "p99 s")
    body = (
        (
            f"{row.minute:%Y-%m-%d %H:%M}",
            escape(row.destination_id),
            escape(row.event_type),
            str(row.attempts),
            f"{row.success_rate:.1%}",
            *(
                "-" if seconds is None else f"{seconds:.3f}"
                for seconds in (row.p50_seconds, row.p95_seconds, row.p99_seconds)
            ),
        )
        for row in rows
    )
    lines = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in body)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>\n{lines}</table>"
