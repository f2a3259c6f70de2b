"""SQL kept as SQL: files in ``sql/``, one statement under each ``-- name: …`` line."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import LiteralString, cast

_NAME = re.compile(r"^-- name: ([a-z0-9_]+)\n", re.MULTILINE)


@cache
def query(subject: str, name: str) -> LiteralString:
    """The statement ``name`` of ``sql/<subject>.sql``. Raises KeyError where there is none."""
    return _statements(subject)[name]


@cache
def _statements(subject: str) -> dict[str, LiteralString]:
    text = (resources.files(__package__) / "sql" / f"{subject}.sql").read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"sql/{subject}.sql names a statement twice")
    # The files are part of the program, as a literal in it would be.
    return {name: cast(LiteralString, body.strip()) for name, body in zip(names, bodies, strict=True)}
