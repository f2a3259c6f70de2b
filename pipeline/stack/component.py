"""One component of the program as a child process: `python -m pipeline.cli run <name>`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.settings import PREFIX, environment_of
from pipeline.stack.child_process import ChildProcess, Command, OnStart

# Settings of the caller that are about other servers than the stack's.
CONNECTION_PREFIXES = (f"{PREFIX}POSTGRES_", f"{PREFIX}KAFKA_")
COMPONENTS = ("connector", "worker", "reconciler", "audit", "api")


def component_process(
    component: str,
    settings: Mapping[str, object],
    *,
    name: str | None = None,
    log: Path,
    inherit_settings: bool = False,
    on_start: OnStart | None = None,
) -> ChildProcess:
    """Prepare a component; `start` runs it.

    `settings` are fields of Settings by name and go by environment, since some are secrets.
    `inherit_settings` keeps the caller's own OUTRIDER_ variables where `settings` has none, but for
    those about connections, which belong to other servers.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = Command(
        arguments=program("run", component),
        environment=program_environment(settings, inherit_settings=inherit_settings),
        directory=log.parent,
        log=log,
    )
    return ChildProcess(name or component, command, on_start=on_start)


def program(*arguments: str) -> list[str]:
    """The command line of this program under this interpreter."""
    # -P: a folder named like one of our packages in the working directory must not win.
    return [sys.executable, "-P", "-m", "pipeline.cli", *arguments]


def program_environment(settings: Mapping[str, object], *, inherit_settings: bool) -> dict[str, str]:
    """Environment of the caller, with `settings` in place of (or over) its OUTRIDER_ variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) or (inherit_settings and not name.startswith(CONNECTION_PREFIXES))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **environment_of(settings)}
