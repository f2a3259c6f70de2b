"""Stacked bars as SVG text. Pure, and small enough to need no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 240
LEFT, BOTTOM, TOP = 70, 40, 16
LABELS_MAX = 8
BARS_MAX = 480
"""More are drawn summed, so that each has two points of width."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    values: Mapping[str, int]


def stacked_bars(bars: Sequence[Bar], colours: Mapping[str, str]) -> str:
    """One bar each, its values from the bottom up in the order of ``colours``; a legend, and a title for each part."""
    drawn = _thinned(bars, colours)
    highest = max((sum(bar.values.get(name, 0) for name in colours) for bar in drawn), default=0) or 1
    width = (WIDTH - LEFT) / max(1, len(drawn))
    scale = (HEIGHT - BOTTOM - TOP) / highest
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="deliveries by bucket">']
    for share in (0, 0.5, 1):
        y = HEIGHT - BOTTOM - share * highest * scale
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" font-size="12" text-anchor="end">{highest * share:g}</text>'
        )
    step = max(1, -(-len(drawn) // LABELS_MAX))
    for place, bar in enumerate(drawn):
        x, y = LEFT + place * width, float(HEIGHT - BOTTOM)
        for name, colour in colours.items():
            value = bar.values.get(name, 0)
            if value:
                y -= value * scale
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width * 0.85):.1f}" height="{value * scale:.1f}" '
                    f'fill="{colour}"><title>{escape(bar.label)}: {value} {escape(name)}</title></rect>'
                )
        if place % step == 0:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" font-size="11">{escape(bar.label[:16])}</text>')
    for place, (name, colour) in enumerate(colours.items()):
        x = LEFT + place * 110
        parts.append(f'<rect x="{x}" y="{HEIGHT - 14}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{HEIGHT - 5}" font-size="12">{escape(name)}</text>')
    return "".join(parts) + "</svg>"


def _thinned(bars: Sequence[Bar], names: Mapping[str, str]) -> list[Bar]:
    together = -(-len(bars) // BARS_MAX) or 1
    return [
        Bar(
            bars[first].label,
            {name: sum(bar.values.get(name, 0) for bar in bars[first : first + together]) for name in names},
        )
        for first in range(0, len(bars), together)
    ]
