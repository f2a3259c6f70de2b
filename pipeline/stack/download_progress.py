"""Progress of a download on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

PLAIN_LINES = 5


class DownloadProgress(Protocol):
    """Told of each finished file, from any thread."""

    def advance(self, size_bytes: int) -> None: ...


@contextmanager
def download_progress(what: str, files: int, total_bytes: int) -> Iterator[DownloadProgress]:
    """Show the download of `files` files with `total_bytes` bytes together."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _PlainLines(what, files, total_bytes)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        yield _Bar(bar, f"Fetching {what} ({files} files, once)", total_bytes)


class _Bar:
    def __init__(self, bar: Progress, description: str, total_bytes: int) -> None:
        self._bar = bar
        self._task = bar.add_task(description, total=total_bytes)

    def advance(self, size_bytes: int) -> None:
        self._bar.advance(self._task, size_bytes)


class _PlainLines:
    """A line at the start and one for each further fifth."""

    def __init__(self, what: str, files: int, total_bytes: int) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._fifths_said = 0
        self._lock = threading.Lock()
        self._say(f"fetching {what}: {files} files, {total_bytes / 1e6:.0f} MB (once)")

    def advance(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            fifths = self._done_bytes * PLAIN_LINES // self._total_bytes
            if fifths > self._fifths_said:
                self._fifths_said = fifths
                self._say(f"fetching {self._what}: {fifths * 100 // PLAIN_LINES} %")

    @staticmethod
    def _say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
