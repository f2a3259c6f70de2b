"""Plans as files: readable JSON, written once, and checked before it is believed.

What a plan is, its own package says; replay's are written and read by the same functions under its own error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from pipeline.input_files import InputFileError, read_named
from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.plan import PLAN_FORMAT, Plan, is_consistent

BYTES_MAX = 256 * 1024 * 1024

ErrorOf = Callable[[str], Exception]
"""Makes the error to raise of one line."""


class HasFormat(Protocol):
    @property
    def format(self) -> str: ...


Kind = TypeVar("Kind", bound=HasFormat)


def write_plan(plan: Plan, path: Path) -> None:
    """Raises OffsetsError; a file that is there already is left alone."""
    write_once(plan, path, OffsetsError)


def read_plan(path: Path) -> Plan:
    """Raises OffsetsError for a file that is none of ours, or was edited."""
    content = read_bounded(path, BYTES_MAX, OffsetsError)

    def error(problem: str) -> OffsetsError:
        return OffsetsError(f"{path} {problem}")

    plan = decode_plan(content, Plan, PLAN_FORMAT, error)
    if not is_consistent(plan):
        raise error("contradicts itself, as after an edit by hand: plan again")
    return plan


def write_once(plan: msgspec.Struct, path: Path, error: ErrorOf) -> None:
    """A file that is there already is left alone."""
    content = msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise error(f"{path} is there already: name another file with --out") from None
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror}") from None


def read_bounded(path: Path, bytes_max: int, error: ErrorOf) -> bytes:
    """A pipe too. Raises the error for one that is larger than any plan."""
    try:
        return read_named(path, bytes_max)
    except InputFileError as failure:
        raise error(str(failure)) from None


def decode_plan(content: bytes, kind: type[Kind], plan_format: str, error: ErrorOf) -> Kind:
    """A plan of this kind and format, whatever it says. Pure; the error's line begins with a verb."""
    try:
        plan = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise error(f"is no plan: {failure}") from None
    if plan.format != plan_format:
        raise error(f"has the format {plan.format!r}, and this program reads {plan_format!r}: plan again")
    return plan
