"""Print the part of requirements.lock that some packages need, with its hashes.

    python deploy/locked.py             what the program needs at run time
    python deploy/locked.py hatchling   what building it needs

The lock has everything, tests and the embedded servers too; an image for production installs less of the same. Needs
nothing but the standard library, since it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==")
_VIA = re.compile(r"^    #(?: via)? +(?P<name>[A-Za-z0-9._-]+)")


def normalized(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def runtime_dependencies(pyproject: str) -> list[str]:
    """Names in ``project.dependencies``."""
    return [
        re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        for line in tomllib.loads(pyproject)["project"]["dependencies"]
    ]


def locked_part(lock: str, wanted: Iterable[str]) -> str:
    """Entries of the wanted packages and of all that they need. Raises KeyError for one that is not locked."""
    entries: dict[str, str] = {}
    needed_by: dict[str, set[str]] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if match := _ENTRY.match(line):
            name = normalized(match["name"])
            entries[name], needed_by[name] = "", set()
        elif match := _VIA.match(line):
            needed_by[name].add(normalized(match["name"]))
            continue
        if name and not line.lstrip().startswith("#"):
            entries[name] += line
    chosen = {normalized(name) for name in wanted}
    if missing := chosen - entries.keys():
        raise KeyError(f"not in the lock: {', '.join(sorted(missing))}")
    while more := {name for name in entries.keys() - chosen if needed_by[name] & chosen}:
        chosen |= more
    return "".join(entries[name] for name in sorted(chosen))


def main() -> None:
    wanted = sys.argv[1:] or runtime_dependencies((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    print(locked_part((ROOT / "requirements.lock").read_text(encoding="utf-8"), wanted), end="")


if __name__ == "__main__":
    main()
