"""A receiver's own list of what it has: ids one a line, or JSON objects one a line. Read line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TextIO

from pipeline.core.ids import is_ping

ID_CHARACTERS_MAX = 1_024
LINE_CHARACTERS_MAX = 1_048_576
LINES_MAX = 100_000_000
"""A pipe may go on for ever, and what it says is kept on the database's disk."""
ID_FIELDS = ("delivery_id", "webhook-id", "webhook_id", "idempotency_key", "id")
"""In an object, the first of these that is there."""


class ReceiverListError(ValueError):
    """A line names no delivery; the message says which."""


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Its lines. One that is too long comes in parts, of which the first is refused, and is not read to its end."""
    return iter(lambda: file.readline(LINE_CHARACTERS_MAX + 1), "")


def read_receiver_list(lines: Iterable[str]) -> Iterator[str]:
    """Ids in the list's order, repeats among them. Raises ReceiverListError.

    Empty lines are passed over, and the pings of ``outrider destination test``, which the ledger never knew.
    """
    for number, line in enumerate(lines, start=1):
        if number > LINES_MAX:
            raise ReceiverListError(
                f"has more than {LINES_MAX} lines: compare a shorter time, with --since and --until"
            )
        text = line.strip().removeprefix("\ufeff")
        if text and not is_ping(found := _checked(_id_of(text, number), number)):
            yield found


def _id_of(text: str, number: int) -> object:
    if not text.startswith("{"):
        return text
    if len(text) > LINE_CHARACTERS_MAX:
        raise ReceiverListError(f"line {number} is longer than {LINE_CHARACTERS_MAX} characters")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise ReceiverListError(f"line {number} is no JSON object") from None
    found = next((given[name] for name in ID_FIELDS if name in given), None)
    if found is None:
        raise ReceiverListError(f"line {number} has none of {', '.join(ID_FIELDS)}")
    return found


def _checked(found: object, number: int) -> str:
    if not isinstance(found, str) or not found or len(found) > ID_CHARACTERS_MAX or "\0" in found:
        raise ReceiverListError(f"line {number} has no id: text of at most {ID_CHARACTERS_MAX} characters")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ReceiverListError(f"line {number} has an id that is no Unicode text") from None
    return found
