"""Who acts on the command line, and why: the options that every recorded act shares."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from pipeline.ledger.operator import Act

Operator = Annotated[
    str | None, typer.Option(help="Who does it, for the record; the operating system's user by default.")
]
Reason = Annotated[str, typer.Option(help="Why, for the record.")]
OptionalReason = Annotated[str | None, typer.Option(help="Why, for the record.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def act(operator: str | None, reason: str | None) -> Act:
    return Act(operator or _system_user(), reason)


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return "unknown"
