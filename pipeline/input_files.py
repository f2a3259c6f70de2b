"""Files that somebody names, in the configuration or on a command line: read in one way, and never beyond a bound.

A start that nobody watches reads the files of the configuration, so they must be regular ones: a pipe without a writer would
hold it for ever, and a device has no end. On a command line anything may be named that can be read, as ``/dev/stdin`` or
``<(…)``; whoever typed it sees that it waits, and Ctrl-C ends that.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final, TextIO

STANDARD_INPUT: Final = "-"

_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class InputFileError(Exception):
    """A file cannot be taken: one line that begins with its path."""


def read_regular(path: Path, bytes_max: int) -> bytes:
    """All of a regular file. Raises InputFileError, also for one that is larger."""
    with open_regular(path) as file, _reading(path):
        return _within(path, file.read(bytes_max + 1), bytes_max)


def open_regular(path: Path) -> BufferedReader:
    """A regular file, to be read piece by piece. Raises InputFileError."""
    with _reading(path):
        _check_regular(path, path.stat().st_mode)
        # Does not wait for a pipe that took its place in between.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        try:
            _check_regular(path, os.fstat(file.fileno()).st_mode)
        except InputFileError:
            file.close()
            raise
        return file


def check_regular(path: Path) -> None:
    """For a file that a library opens. One that is not there, or may not be looked at, is left to that."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    _check_regular(path, mode)


def read_named(path: Path, bytes_max: int) -> bytes:
    """All that a file or pipe of the command line has. Raises InputFileError, also for one that has more."""
    with _reading(path), path.open("rb") as file:
        return _within(path, file.read(bytes_max + 1), bytes_max)


def read_named_text(path: Path, bytes_max: int) -> str:
    """The same as UTF-8, without a byte order mark; ``-`` is standard input. Raises InputFileError."""
    if str(path) != STANDARD_INPUT:
        return as_text(path, read_named(path, bytes_max))
    try:
        text = sys.stdin.read(bytes_max + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(f"standard input cannot be read: {error}") from None
    if len(text) > bytes_max:
        raise InputFileError(f"standard input has more than {bytes_max} characters")
    return text


@contextmanager
def open_named_text(path: Path) -> Iterator[TextIO]:
    """To be read piece by piece; ``-`` is standard input. Raises InputFileError where it cannot be opened."""
    if str(path) == STANDARD_INPUT:
        yield sys.stdin
        return
    with _reading(path):
        file = path.open(encoding="utf-8")
    with file:
        yield file


def as_text(path: Path, content: bytes) -> str:
    """UTF-8, without a byte order mark, whatever ends its lines. Raises InputFileError."""
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputFileError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None


def _within(path: Path, content: bytes, bytes_max: int) -> bytes:
    if len(content) > bytes_max:
        raise InputFileError(f"{path} has more than {bytes_max} bytes")
    return content


def _check_regular(path: Path, mode: int) -> None:
    kind = next((name for is_one, name in _KINDS if is_one(mode)), None)
    if kind is not None:
        raise InputFileError(f"{path} is {kind}, and no regular file")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path may hold what no name of a file does
        raise InputFileError(f"{str(path)!r} cannot be read: {error}") from None
