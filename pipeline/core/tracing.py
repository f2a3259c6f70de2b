"""W3C Trace Context: the ``traceparent`` of an attempt.

An event that was admitted with a valid ``traceparent`` stays in that trace; for any other the trace id is derived from its
id, so that all deliveries and attempts of one event are one trace. Each attempt is a span of its own under it. Both ids
are derived and not drawn: whoever has the attempt log can compute them.
"""

from __future__ import annotations

import hashlib
import re

_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_VERSION = "00"
_NOT_SAMPLED = "00"


def traceparent_of(given: str | None, *, event_id: str, delivery_id: str, attempt: int) -> str:
    """The header's value; ``given`` is what the event was admitted with."""
    trace, flags = _trace_of(given) or (hashlib.sha256(event_id.encode()).hexdigest()[:32], _NOT_SAMPLED)
    span = hashlib.sha256(f"{delivery_id} {attempt}".encode()).hexdigest()[:16]
    return f"{_VERSION}-{trace}-{span}-{flags}"


def _trace_of(given: str | None) -> tuple[str, str] | None:
    """Trace id and flags of a valid header. Versions after 00 may have more parts, and of the flags only one is known."""
    match = _TRACEPARENT.fullmatch(given or "")
    if match is None or (match["version"] == _VERSION and match["rest"]):
        return None
    if not int(match["trace"], 16) or not int(match["parent"], 16):  # all zeros are no id
        return None
    return match["trace"], f"{int(match['flags'], 16) & 1:02x}"
