"""``outrider source shadow``: how the path that would be new compares with the one that is live."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pipeline.cli.acting import AsJson
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.ledger.operator import operator_connection
from pipeline.ledger.source_shadow import DIFFERENCES, ShadowClass, ShadowReport, shadow_report
from pipeline.ledger.source_switches import NoSuchSourceError, find_source
from pipeline.settings import load_settings

MEANINGS = {
    "both": "seen by the new path, admitted by the live one",
    "waiting": "seen, and not admitted yet, within the grace",
    "between_looks": "admitted before the new path could look",
    "candidate_only": "the new path would admit it, the live one has not",
    "live_only": "the live path admitted it, the new one does not see it",
    "due_only": "due by the direct query, and never claimed",
    "claim_only": "claimed, and not due by the direct query",
    "differs": "admitted with other bytes or another type",
}


def register(group: typer.Typer) -> None:
    group.command("shadow")(shadow)


def shadow(
    source: str,
    *,
    grace_seconds: Annotated[
        float,
        typer.Option(min=0, max=604_800, help="How long the live path may take: longer than its own period."),
    ] = 300.0,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Differences to list; all are counted.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Compare what the shadow shards would have admitted with what was admitted; exit code 1 where they differ."""
    with operator_connection(load_settings().postgres_conninfo) as connection:
        try:
            find_source(connection, source)
        except NoSuchSourceError:
            raise CommandError(f"no source {visible(source)}: see outrider source list") from None
        report = shadow_report(connection, source, grace_seconds=grace_seconds, limit=limit)
    if as_json:
        print_json(plain(report))
    else:
        _print(report)
    if report.looks.complete == 0:
        raise CommandError(
            f"{source}: nothing was compared, since no look has seen everything: set it to --mode shadow, and see outrider "
            f"source show {source}"
        )
    raise typer.Exit(report.difference_rows > 0)


def plain(report: ShadowReport) -> dict[str, Any]:
    """The report as JSON-like data."""
    return {
        **asdict(report.looks),
        "rows": {name: report.classes[name].rows if name in report.classes else 0 for name in MEANINGS},
        "lag_seconds": {"candidate": _lags(report, "candidate"), "live": _lags(report, "live")},
        "differences": [
            {("difference" if name == "class_" else name): value for name, value in asdict(found).items()}
            for found in report.differences
        ],
        "difference_rows": report.difference_rows,
    }


def _lags(report: ShadowReport, side: str) -> dict[str, float | None]:
    """Of rows that both paths have."""
    found = report.classes.get("both")
    values: Sequence[float | None] = ()
    if isinstance(found, ShadowClass):
        values = (found.candidate_lags_seconds if side == "candidate" else found.live_lags_seconds) or ()
    return dict(zip(("p50", "p99", "max"), values, strict=False))


def _print(report: ShadowReport) -> None:
    looks = report.looks
    print_fields(
        [
            ("shadow since", looks.since),
            ("looks", f"{looks.looks}, of which {looks.complete} saw everything and {looks.failed} failed"),
            ("last look", looks.last_at),
        ]
    )
    print()
    print_columns(
        ("ROWS", "", "CLASS", "MEANS"),
        [
            (found.rows, "!" if name in DIFFERENCES else "", name, MEANINGS[name])
            for name in MEANINGS
            if (found := report.classes.get(name)) is not None
        ],
    )
    for side in ("candidate", "live"):
        if lags := _lags(report, side):
            shown = ", ".join(f"{name} {value:.3f} s" for name, value in lags.items() if value is not None)
            print(f"{side} lag of rows that both have: {shown or 'unknown'}")
    if report.differences:
        print()
        print_columns(
            ("CLASS", "EVENT", "DUE", "SEEN", "ADMITTED", "LAG NEW", "LAG LIVE"),
            [
                (
                    found.class_,
                    found.event_id,
                    found.due_at,
                    found.candidate_at or found.direct_at,
                    found.live_at,
                    _seconds(found.candidate_lag_seconds),
                    _seconds(found.live_lag_seconds),
                )
                for found in report.differences
            ],
        )
        if report.difference_rows > len(report.differences):
            print(f"more: {report.difference_rows} in all, --limit lists more", file=sys.stderr)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
