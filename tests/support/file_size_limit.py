"""A stand-in for a full disk: a server that may not write a file beyond some size gets the error in the same place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SECONDS = 10.0


@contextmanager
def file_size_limit(pid: int, limit_bytes: int) -> Iterator[None]:
    """Limit the process, and children that it starts meanwhile, while the block runs.

    The error number is EFBIG where a full disk gives ENOSPC. Skips the test where there is no ``prlimit``.
    """
    program = shutil.which("prlimit")
    if program is None:
        pytest.skip("there is no prlimit, by which a full disk is imitated")
    _set_limit(program, pid, str(limit_bytes))
    try:
        yield
    finally:
        if Path(f"/proc/{pid}").exists():  # it may have ended by it
            _set_limit(program, pid, "unlimited")


def _set_limit(program: str, pid: int, soft: str) -> None:
    """As the user of the process, because a root without all its powers may not do it for another."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    user, group = int(status["Uid"].split()[0]), int(status["Gid"].split()[0])
    own = user == os.geteuid()
    credentials: dict[str, Any] = {} if own else {"user": user, "group": group, "extra_groups": []}
    subprocess.run([program, f"--pid={pid}", f"--fsize={soft}:"], check=True, cwd="/", timeout=SECONDS, **credentials)
