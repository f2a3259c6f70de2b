"""Rows of a claim as events to admit. Pure.

Columns are known by name, and their types are the statement's, so what is wrong with them is wrong with the source. What is
wrong with one row's values is that row's refusal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.ledger.admission import EventToAdmit
from pipeline.reconcile.source_file import Source

# Object ids of PostgreSQL's own types, which never change (pg_type.dat).
_TEXT = {25: "text", 1043: "varchar"}
_BYTES = {17: "bytea", **_TEXT}
_TIME = {1184: "timestamptz"}
_TEXTS = {1009: "text[]", 1015: "varchar[]"}
_JSON = {3802: "jsonb", 114: "json"}
REQUIRED: Mapping[str, Mapping[int, str]] = {"event_id": _TEXT, "event_type": _TEXT, "payload": _BYTES}
OPTIONAL: Mapping[str, Mapping[int, str]] = {
    "content_type": _TEXT,
    "destinations": _TEXTS,
    "deliver_at": _TIME,
    "headers": _JSON,
    "due_at": _TIME,
}
DUE: Mapping[str, Mapping[int, str]] = {"event_id": _TEXT, "due_at": _TIME}

CONTENT_TYPE = "application/json"
TEXT_SHOWN = 80
_UNREADABLE = "JSON that cannot be read"


class SourceError(Exception):
    """A source's statement does not keep to its contract: one line that names the statement and the mend."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    event: EventToAdmit
    due_at: datetime | None
    refusal: str | None
    """Why it must not be admitted, where that is known before the ledger is asked."""


def check_columns(
    statement: str,
    columns: Sequence[Column],
    required: Mapping[str, Mapping[int, str]],
    optional: Mapping[str, Mapping[int, str]],
) -> None:
    """Raises SourceError for a column that is missing, unknown, given twice, or of another type."""
    names = [column.name for column in columns]
    for name in required:
        if name not in names:
            raise SourceError(f"{statement} has no column {name}: it gives {', '.join(names) or 'none'}")
    for column in columns:
        types = required.get(column.name) or optional.get(column.name)
        if types is None:
            known = ", ".join([*required, *optional])
            raise SourceError(f"{statement} gives a column {column.name}, which has no meaning: it may give {known}")
        if column.type_oid not in types:
            wanted = next(iter(types.values()))
            raise SourceError(
                f"{statement}: {column.name} must be {wanted}: cast it, as in …::{wanted} as {column.name}"
            )
        if names.count(column.name) > 1:
            raise SourceError(f"{statement} gives the column {column.name} twice")


def claimed_rows(source: Source, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> list[ClaimedRow]:
    """Raises SourceError where the columns are not those of a claim, or a row has no id to name it by."""
    check_columns("claim", columns, REQUIRED, OPTIONAL)
    names = [column.name for column in columns]
    claimed = [_claimed(source, dict(zip(names, row, strict=True))) for row in rows]
    seen = set()
    for row in claimed:
        if row.event.event_id in seen:
            raise SourceError(f"claim gives the event_id {shown(row.event.event_id)} twice in one page")
        seen.add(row.event.event_id)
    return claimed


def _claimed(source: Source, values: dict[str, Any]) -> ClaimedRow:
    if not values["event_id"]:
        raise SourceError("claim gives a row whose event_id is empty or NULL, so it cannot be passed over")
    payload = values["payload"]
    headers = {} if values.get("headers") is None else values["headers"]
    are_headers_texts = _are_texts(headers)
    event = EventToAdmit(
        event_id=values["event_id"],
        event_type=values["event_type"],
        payload=payload.encode() if isinstance(payload, str) else payload,
        content_type=values.get("content_type") or CONTENT_TYPE,
        headers=headers if are_headers_texts else {},
        destinations=None if values.get("destinations") is None else tuple(values["destinations"]),
        deliver_at=values.get("deliver_at"),
    )
    refusal = None
    if event.event_type not in source.event_types:
        refusal = f"event_type {shown(event.event_type)} is not among the source's event_types"
    elif not are_headers_texts:
        refusal = "headers is not a JSON object of texts"
    return ClaimedRow(event, values.get("due_at"), refusal)


def read_json(text: str | bytes) -> object:
    """The value. What nests too deep or has too long a number becomes a text, which is no headers: its row is refused."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _are_texts(headers: object) -> bool:
    """Whether admission can be asked about them: not every number can be written again, nor half a character."""
    if not isinstance(headers, dict) or not all(isinstance(text, str) for text in headers.values()):
        return False
    try:
        for name, text in headers.items():
            f"{name}{text}".encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text: object) -> str:
    """Quoted, and not longer than a line has room for."""
    quoted = repr(text)
    return quoted if len(quoted) <= TEXT_SHOWN else quoted[: TEXT_SHOWN - 1] + "…"
