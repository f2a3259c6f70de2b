"""Plans as files: readable JSON, written once, and checked before it is believed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.plan import PLAN_FORMAT, Plan, is_consistent

BYTES_MAX = 256 * 1024 * 1024


def write_plan(plan: Plan, path: Path) -> None:
    """Raises OffsetsError; a file that is there already is left alone."""
    content = msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise OffsetsError(f"{path} is there already: name another file with --out") from None
    except OSError as error:
        raise OffsetsError(f"{path} cannot be written: {error.strerror}") from None


def read_plan(path: Path) -> Plan:
    """Raises OffsetsError for a file that is none of ours, or was edited."""
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise OffsetsError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > BYTES_MAX:
        raise OffsetsError(f"{path} is larger than any plan")
    try:
        plan = msgspec.json.decode(content, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OffsetsError(f"{path} is no plan: {error}") from None
    if plan.format != PLAN_FORMAT:
        raise OffsetsError(f"{path} has the format {plan.format!r}, and this program reads {PLAN_FORMAT!r}: plan again")
    if not is_consistent(plan):
        raise OffsetsError(f"{path} contradicts itself, as after an edit by hand: plan again")
    return plan
