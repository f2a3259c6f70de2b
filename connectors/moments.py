"""Moments in a column as what Kafka stamps records with: milliseconds since 1970. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_INT8, _TIMESTAMP, _TIMESTAMPTZ = 20, 1114, 1184
MOMENT_TYPES: Final = frozenset((_INT8, _TIMESTAMP, _TIMESTAMPTZ))
"""Type oids whose canonical text :func:`milliseconds_of` reads."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds_of(text: str) -> int:
    """Read an integer, or a moment as :mod:`connectors.postgres.values` writes it; without a zone it is UTC.

    Raises ValueError for infinity, for what is not after 1970 (Kafka has no such timestamps, and 0 means "now" to its
    client), and for what is after the year 9999.
    """
    if text.lstrip("-").isdigit():
        moment_ms = int(text)
    else:
        moment = datetime.fromisoformat(text)
        moment_ms = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
    if not 0 < moment_ms < 253_402_300_800_000:
        raise ValueError(f"{text} is no moment that a record can carry")
    return moment_ms
