"""The form in which every long proof reports: progress as lines on stderr, one JSON object on stdout."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from math import ceil
from typing import Any

_BEGUN = time.monotonic()


def progress(text: str) -> None:
    """One line, with the seconds since the start."""
    print(f"{time.monotonic() - _BEGUN:7.1f} s  {text}", file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and greatest of some seconds; empty without any."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[ceil(0.95 * len(ordered)) - 1], 2),
        "max": round(ordered[-1], 2),
    }


def finish(name: str, figures: dict[str, Any], faults: Sequence[str]) -> int:
    """Print the report. Returns the exit code: 1 where something does not hold."""
    print(json.dumps({"name": name, "holds": not faults, "faults": list(faults), **figures}), flush=True)
    return 1 if faults else 0
