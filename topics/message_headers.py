"""Headers of a message as confluent_kafka has read it, where a header's name may be no text.

The client then returns a list with holes and leaves its exception behind. An ordinary call would raise it as SystemError,
but CPython calls a method directly once the line is hot, and does not look: the exception comes up somewhere later, and
whoever touches a hole ends the process. A caller from C looks each time.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from confluent_kafka import Message

Headers = list[tuple[str, bytes | None]]

_ask = methodcaller("headers")


class UnreadableHeadersError(ValueError):
    """A header's name is no UTF-8. The message must not be asked again: it would give the list with its holes."""


def headers_of(message: Message) -> Headers:
    """In their order. Raises UnreadableHeadersError."""
    try:
        found: Any = _ask(message) or []
    except SystemError as error:
        raise UnreadableHeadersError(f"headers: cannot be read: {error.__cause__ or error}") from None
    return list(found.items() if isinstance(found, dict) else found)
