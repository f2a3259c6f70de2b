"""The head of a delivery's request: what is the same for a destination, and what is of this attempt.

The first part is made once for each destination's settings and kept as bytes; the rest is written anew for each attempt,
because time, number and signature are the attempt's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from yarl import URL

USER_AGENT = f"outrider/{metadata.version('outrider')}"
HEADS_CACHED = 4096
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class HeaderRefusedError(ValueError):
    """A header would break out of its line. Admission and the schema refuse such; the sender does not rely on it."""


@dataclass(frozen=True, slots=True)
class FixedHead:
    """Request line and those headers that are the same in every request to a destination."""

    text: str
    names: frozenset[str]
    """Names of the destination's own headers, in lower case."""


@lru_cache(maxsize=HEADS_CACHED)
def fixed_head(
    url: str, static_headers: tuple[tuple[str, str], ...] = (), authorization: str | None = None
) -> FixedHead:
    """For POSTs to ``url``. Raises HeaderRefusedError, or ValueError for what is no URL."""
    parsed = URL(url)
    host = parsed.host_subcomponent or ""
    lines = [
        f"POST {parsed.raw_path_qs or '/'} HTTP/1.1",
        # The receiver sees the name that was configured; only the socket knows the address.
        f"host: {host if parsed.is_default_port() else f'{host}:{parsed.port}'}",
        f"user-agent: {USER_AGENT}",
        # An answer that is not compressed cannot grow when it is read.
        "accept-encoding: identity",
        *(_line(name, value) for name, value in static_headers),
    ]
    if authorization is not None:
        lines.append(_line("authorization", authorization))
    return FixedHead("\r\n".join(lines), frozenset(name.lower() for name, _ in static_headers))


def request_head(
    fixed: FixedHead,
    *,
    delivery_id: str,
    attempt: int,
    content_type: str,
    event_headers: Mapping[str, str],
    signature: str,
    timestamp: int,
    traceparent: str,
    body_bytes: int,
) -> bytes:
    """All before the body. ``timestamp`` is the unix time of this attempt, in seconds. Raises HeaderRefusedError.

    Admission refuses event headers under the names that stand here. Where an event and its destination name the same
    header, the destination's stands.
    """
    own = "".join(
        f"\r\n{_line(name, value)}"
        for name, value in event_headers.items()
        if name.lower() != "traceparent" and name.lower() not in fixed.names
    )
    text = (
        f"{fixed.text}{own}\r\n{_line('content-type', content_type)}\r\ncontent-length: {body_bytes}"
        f"\r\nwebhook-id: {delivery_id}\r\nwebhook-timestamp: {timestamp}\r\nwebhook-signature: {signature}"
        f"\r\nidempotency-key: {delivery_id}\r\noutrider-attempt: {attempt}\r\ntraceparent: {traceparent}\r\n\r\n"
    )
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise HeaderRefusedError(f"a header holds {error.object[error.start]!a}, which has no place in one") from None


def _line(name: str, value: str) -> str:
    if not value.isprintable() and _CONTROL.search(value):
        raise HeaderRefusedError(f"header {name!a} has a control character in its value")
    return f"{name}: {value}"
