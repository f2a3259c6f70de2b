"""A stand-in for a full disk: a server that may not write a file beyond some size gets the error in the same place."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def file_size_limit(pid: int, limit_bytes: int) -> Iterator[None]:
    """Limit the process, and children that it starts meanwhile, while the block runs.

    The error number is EFBIG where a full disk gives ENOSPC. Raises PermissionError for a process of another user.
    """
    _, hard = before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have ended by it
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
