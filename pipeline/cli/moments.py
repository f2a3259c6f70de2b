"""Moments on the command line: given in full, or as a time that ended now."""

from __future__ import annotations

from datetime import datetime

from pipeline.cli.errors import UsageError
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.targets import parse_duration, parse_moment


def parse_moment_or_ago(option: str, text: str, now: datetime) -> datetime:
    """``2026-11-30T18:00:00Z``, or ``6h``, ``PT6H``: so long before ``now``. Raises UsageError, which names the option."""
    try:
        if text[:1] == "P" or text[-1:] in ("d", "h", "m", "s"):
            return now - parse_duration(text)
        return parse_moment(text)
    except (OffsetsError, OverflowError) as error:
        raise UsageError(f"{option}: {error}") from None
