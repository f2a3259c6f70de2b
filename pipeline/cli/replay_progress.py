"""What the commands of `outrider replay` share: progress on stderr, and errors as one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.cli.errors import CommandError
from pipeline.cli.replay_text import progress_line
from pipeline.ledger.runs import BusyError
from pipeline.offsets.errors import OffsetsError
from pipeline.replay.errors import ReplayError
from pipeline.replay.progress import Progress

PROGRESS_SECONDS = 1.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Line:
    """Progress on stderr: a line that changes on a terminal, a plain one now and then elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS
        self._is_open = False

    def offsets(self, done: int, total: int) -> None:
        self._show(f"read {done} of {total} offsets")

    def run(self, progress: Progress) -> None:
        self._show(progress_line(progress))

    def end(self) -> None:
        if self._is_open:
            print(file=sys.stderr)

    def _show(self, text: str) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_SECONDS
        if sys.stderr.isatty():
            self._is_open = True
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            say(text)


@contextmanager
def errors(after_interrupt: str) -> Iterator[None]:
    try:
        yield
    except (ReplayError, OffsetsError) as error:
        raise CommandError(str(error)) from None
    except BusyError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError(f"interrupted: {after_interrupt}") from None
