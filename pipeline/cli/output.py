"""How commands show things: aligned columns for people, JSON for programs, nothing that can move the cursor."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID


def visible(value: object) -> str:
    """Text for a terminal: ids and errors come from outside, and may hold control characters."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def print_columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell, the last one ragged; nothing is cut, so that it can be piped on."""
    cells = [tuple(header), *(tuple(visible(value) for value in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(header))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One ``name  value`` a line."""
    pairs = [(name, visible(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, text in pairs:
        print(f"{name.ljust(width)}  {text}")


def print_json(value: Any) -> None:
    """One line. Times as ISO 8601, bytes as hex, dataclasses as objects."""
    print(json.dumps(value, default=_plain))


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no JSON for {type(value).__name__}")
