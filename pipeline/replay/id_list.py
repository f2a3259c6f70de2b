"""Files of delivery ids, one a line: read as they stand, however long they are. Regular files, because a run reads them again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from pipeline.input_files import InputFileError, open_regular
from pipeline.replay.errors import ReplayError
from pipeline.replay.plan import IdList
from topics.codecs import IDENTITY_BYTES_MAX

LINE_BYTES_MAX = 64 * 1024
"""Also of one without an end, as of a file that is none of text: no more is read at once."""


def read_ids(path: Path) -> Iterator[str]:
    """In the order of the file, which may have one more than once. Raises ReplayError."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), start=1):
                content = line.strip()
                if len(content) > IDENTITY_BYTES_MAX or b"\0" in content or len(line) == LINE_BYTES_MAX:
                    raise ReplayError(f"{path} line {number} is no delivery's id")
                if content:
                    yield content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{path} cannot be read: {error}") from None


def _opened(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except InputFileError as error:
        raise ReplayError(f"{error}: ids are read again when the plan is run, so name a file that keeps them") from None


def describe(path: Path, *, ids: int, unknown: int) -> IdList:
    """Raises ReplayError."""
    return IdList(path=str(path.resolve()), sha256=_digest(path), ids=ids, unknown=unknown)


def check_unchanged(listed: IdList) -> Path:
    """Raises ReplayError where the file is not the one that was planned with."""
    path = Path(listed.path)
    if _digest(path) != listed.sha256:
        raise ReplayError(f"{path} has changed since the plan: plan again")
    return path


def _digest(path: Path) -> str:
    try:
        with _opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ReplayError(f"{path} cannot be read: {error.strerror}") from None
