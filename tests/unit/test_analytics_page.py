"""The page of examples/analytics: whatever the names are, and however many there are."""

from __future__ import annotations

import re
from datetime import datetime
from xml.etree import ElementTree as ET

from examples.analytics.page import DESTINATIONS_MAX, HEIGHT, TABLE_ROWS_MAX, WIDTH, render
from examples.analytics.store import Minute


def minute(number: int, destination: str = "acme", **changes: object) -> Minute:
    values: dict[str, object] = {
        "minute": datetime(2026, 11, 30, 12, number % 60),  # noqa: DTZ001 - DuckDB's times have no zone
        "destination_id": destination,
        "event_type": "media.processed",
        "attempts": 10,
        "succeeded": 8,
        "success_rate": 0.8,
        "p50_seconds": 0.1,
        "p95_seconds": 0.2,
        "p99_seconds": 0.3,
        **changes,
    }
    return Minute(**values)  # type: ignore[arg-type]


def plots(page: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_one_plot_for_each_destination_with_bars_inside_of_it() -> None:
    page = render([minute(0), minute(3), minute(1, "other", attempts=4, succeeded=0, p95_seconds=None)], defects=0)
    first, second = plots(page)
    assert page.index("<h2>acme</h2>") < page.index("<h2>other</h2>"), "the busier one comes first"
    assert "20 attempts" in page
    assert "80.0% succeeded" in page
    for bar in [*first.findall("rect"), *second.findall("rect")]:
        assert 0 <= float(bar.attrib["x"]) < WIDTH
        assert 0 <= float(bar.attrib["y"]) <= HEIGHT
        assert float(bar.attrib["height"]) <= HEIGHT


def test_names_cannot_leave_their_place() -> None:
    page = render([minute(0, "<script>alert(1)</script>", event_type="<b>")], defects=2)
    assert "<script>" not in page
    assert "<b>" not in page
    assert "2 messages were no attempts" in page


def test_the_page_is_bounded() -> None:
    page = render([minute(n % 60, f"d{n}") for n in range(DESTINATIONS_MAX + TABLE_ROWS_MAX)], defects=0)
    assert len(plots(page)) == DESTINATIONS_MAX
    assert page.count("<tr>") == TABLE_ROWS_MAX + 1
    assert f"{TABLE_ROWS_MAX} destinations with fewer attempts are not shown" in page


def test_a_file_without_attempts_is_a_page_without_plots() -> None:
    assert plots(render([], defects=0)) == []
