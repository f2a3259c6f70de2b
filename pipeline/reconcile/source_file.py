"""A source as a TOML file: ``<directory>/<source id>.toml``. docs/sources.md has the format. No I/O but reading files."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, LiteralString

import msgspec
from msgspec import Meta

from pipeline.input_files import InputFileError, as_text, read_regular
from pipeline.reconcile.source_clock import check_cron

SOURCES_MAX = 1_000
SOURCE_BYTES_MAX = 256 * 1024
SHARDS_MAX = 1_024

_ID = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_PERCENT = re.compile(r"%(?:\((?P<name>[^)]*)\)(?P<form>.?)|(?P<doubled>%)|(?P<other>.|$))", re.DOTALL)
# Explicit, so that the server need not guess a type from an empty list.
_TYPES = {
    "limit": "integer",
    "shards": "integer[]",
    "shard_count": "integer",
    "refused": "text[]",
    "event_ids": "text[]",
}


class SourceFileError(ValueError):
    """One line that names the file, what is wrong in it, and the mend."""


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    description: Annotated[str, Meta(min_length=1, max_length=500)]
    event_types: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(min_length=1)]
    claim: str
    due: str
    lookup: str | None = None
    role: Annotated[str, Meta(min_length=1, max_length=63)] | None = None
    shards: Annotated[int, Meta(ge=1, le=SHARDS_MAX)] = 1
    page_rows: Annotated[int, Meta(ge=1, le=1_000)] = 200
    pass_rows: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    pass_seconds: Annotated[float, Meta(ge=0.1, le=3_600)] = 30.0
    interval_seconds: Annotated[float, Meta(ge=0.1, le=2_592_000)] | None = None
    cron: str | None = None
    time_zone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a reviewed file says. Statements have psycopg's parameters, with their types."""

    source_id: str
    description: str
    event_types: frozenset[str]
    """All that it may admit."""
    claim: LiteralString
    """A page of due rows, taken off what is due: event_id, event_type, payload, and what else of the columns there is."""
    due: LiteralString
    """What is due now, the oldest first, without a lock: event_id, due_at."""
    lookup: LiteralString | None
    """event_id and due_at of named events, due or not. Shadow mode needs it."""
    role: str | None
    """Runs the statements; None: the reconciler's login."""
    shard_count: int
    page_rows: int
    pass_rows: int
    pass_seconds: float
    interval_seconds: float | None
    cron: str | None
    time_zone: str


def is_source_id(text: str) -> bool:
    """Whether a source can have this id."""
    return _ID.fullmatch(text) is not None


def read_sources(directory: Path) -> dict[str, Source]:
    """Every ``*.toml`` of the directory by source id, in order. Raises SourceFileError."""
    try:
        files = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    except OSError as error:
        raise SourceFileError(f"OUTRIDER_SOURCES_DIRECTORY: {directory}: {error.strerror or error}") from None
    if len(files) > SOURCES_MAX:
        raise SourceFileError(f"{directory} has {len(files)} sources, at most {SOURCES_MAX} are read")
    return {source.source_id: source for source in map(read_source, files)}


def read_source(path: Path) -> Source:
    """Raises SourceFileError."""
    try:
        if not is_source_id(path.stem):
            raise SourceFileError(
                "a source is named by its file: a small letter, then up to 62 of a-z, 0-9, _ and -, and .toml"
            )
        content = as_text(path, read_regular(path, SOURCE_BYTES_MAX))
        return parse_source(path.stem, tomllib.loads(content))
    except InputFileError as error:
        raise SourceFileError(str(error)) from None
    except SourceFileError as error:
        raise SourceFileError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:  # a number may have too many digits, a list too many lists in it
        raise SourceFileError(f"{path} is no TOML: {error}") from None


def parse_source(source_id: str, content: dict[str, Any]) -> Source:
    """The source that a TOML document says. Raises SourceFileError."""
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise SourceFileError(str(error)) from None
    for key, text in (("description", file.description), ("role", file.role or "")):
        if "\0" in text:
            raise SourceFileError(f"{key} has a NUL in it")
    sharded = {"shards", "shard_count"} if file.shards > 1 else set[str]()
    own = {"shards", "shard_count"}
    time_zone = file.time_zone or "UTC"
    if file.cron is not None:
        try:
            check_cron(file.cron, time_zone)
        except ValueError as error:
            raise SourceFileError(str(error)) from None
    elif file.time_zone is not None:
        raise SourceFileError("time_zone belongs to cron, and there is none: leave it out")
    if file.pass_rows < file.page_rows:
        raise SourceFileError(f"pass_rows is {file.pass_rows}, less than a page: page_rows is {file.page_rows}")
    return Source(
        source_id=source_id,
        description=file.description,
        event_types=frozenset(file.event_types),
        claim=_statement("claim", file.claim, {"limit", "refused"} | sharded, own),
        due=_statement("due", file.due, {"limit"} | sharded, own),
        lookup=None if file.lookup is None else _statement("lookup", file.lookup, {"event_ids"} | sharded, own),
        role=file.role,
        shard_count=file.shards,
        page_rows=file.page_rows,
        pass_rows=file.pass_rows,
        pass_seconds=file.pass_seconds,
        interval_seconds=file.interval_seconds,
        cron=file.cron,
        time_zone=time_zone,
    )


def _statement(key: str, text: str, needed: set[str], optional: set[str]) -> LiteralString:
    """The statement with types at its parameters. The file is reviewed like code: it counts as a literal."""
    used = set()

    def typed(found: re.Match[str]) -> str:
        if found["doubled"]:
            return "%%"
        name = found["name"]
        if name is None or found["form"] != "s":
            raise SourceFileError(f"{key}: {found[0].strip()!r}: write a percent sign as %%, a parameter as %(limit)s")
        if name not in needed | optional:
            raise SourceFileError(f"{key} has no parameter %({name})s; it has {_listed(needed | optional)}")
        used.add(name)
        return f"%({name})s::{_TYPES[name]}"

    statement = _PERCENT.sub(typed, text).strip().removesuffix(";").strip()
    if not statement:
        raise SourceFileError(f"{key} is empty")
    if "\0" in statement:
        raise SourceFileError(f"{key} has a NUL in it")
    if missing := needed - used:
        raise SourceFileError(f"{key} must use {_listed(missing)}: see docs/sources.md for what each bounds")
    return statement


def _listed(names: set[str]) -> str:
    return ", ".join(f"%({name})s" for name in sorted(names))
