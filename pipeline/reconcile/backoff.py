"""How long to wait before the database is tried again."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.25
LONGEST_SECONDS = 15.0


def backoff_seconds(failures: int) -> float:
    """Doubles with each failure in a row up to LONGEST_SECONDS; half of it is chance, so that many do not come at once."""
    ceiling = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(max(failures - 1, 0), 16))
    return ceiling * random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing
