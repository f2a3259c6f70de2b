"""What a receiver's ``Retry-After`` asks for (RFC 9110, 10.2.3): seconds, or an HTTP date.

Whatever stands there, the answer is a number of seconds between 0 and the caller's bound, or None for garbage.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"\d+(?:\.\d*)?", re.ASCII)
_LENGTH_MAX = 64


def parse_retry_after(value: str | None, *, now: datetime, seconds_max: float) -> float | None:
    """Seconds to wait from ``now`` (aware); a time that has passed gives 0, one too far away ``seconds_max``.

    Fractions of seconds are not in the standard, but receivers send them, and their meaning is plain.
    """
    if value is None:
        return None
    text = value.strip()
    if not text or len(text) > _LENGTH_MAX:
        return None
    if _SECONDS.fullmatch(text):
        return min(float(text), seconds_max)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    if moment.tzinfo is None:  # asctime form, and the zone "-0000": both mean UTC here
        moment = moment.replace(tzinfo=UTC)
    try:
        wait = (moment - now).total_seconds()
    except OverflowError:
        return None
    return min(max(wait, 0.0), seconds_max)
