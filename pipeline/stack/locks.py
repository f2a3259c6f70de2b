"""Exclusive locks on files, which the kernel drops when their last holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.05


def try_lock(path: Path) -> int | None:
    """Lock `path` and return the open descriptor, or None while another process holds it.

    The lock belongs to the open file, so a child that inherits the descriptor keeps it after the
    parent has closed its own: a data directory stays locked exactly as long as its server lives.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock_within(path: Path, wait_seconds: float) -> int | None:
    """Like `try_lock`, but keeps trying for `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_SECONDS)
    return descriptor


@contextmanager
def locked(path: Path, wait_seconds: float) -> Iterator[bool]:
    """Hold the lock for the block; yields False when it could not be had in time."""
    descriptor = lock_within(path, wait_seconds)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)
