"""The ids of rows that the topics hold, in a bounded amount of memory however many they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from types import TracebackType
from typing import Final, Self

from connectors.errors import TransientError

CACHE_KIB: Final = 8 * 1024
DIGEST_BYTES: Final = 16


class PublishedIds:
    """A set of texts by table, in a database file without a name, which goes with this process. Use it with ``with``.

    Digests stand for table and text: of 128 bits, no two that occur are the same. Every method raises TransientError
    where the file cannot be written or read.
    """

    def __init__(self) -> None:
        # An empty name: SQLite keeps the file in the folder for temporary files, and has unlinked it already.
        self._connection = sqlite3.connect("", isolation_level=None)
        for statement in (
            f"pragma cache_size = -{CACHE_KIB}",
            "pragma journal_mode = off",
            "pragma synchronous = off",
            "create table published (digest blob primary key) without rowid",
        ):
            self._connection.execute(statement)
        self.is_empty = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def add(self, table: str, ids: Iterable[bytes]) -> None:
        """Take in ids of a table; those that are there already change nothing."""
        # In their order in the tree, so that a batch touches each page once.
        digests = sorted(_digest(table, text) for text in ids)
        self.is_empty = self.is_empty and not digests
        try:
            self._connection.execute("begin")
            self._connection.executemany("insert or ignore into published values (?)", zip(digests, strict=True))
            self._connection.execute("commit")
        except sqlite3.Error as error:
            raise _failure(error) from None

    def holds(self, table: str, text: bytes) -> bool:
        try:
            found = self._connection.execute("select 1 from published where digest = ?", (_digest(table, text),))
            return found.fetchone() is not None
        except sqlite3.Error as error:
            raise _failure(error) from None


def _digest(table: str, text: bytes) -> bytes:
    return blake2b(table.encode() + b"\0" + text, digest_size=DIGEST_BYTES).digest()


def _failure(error: sqlite3.Error) -> TransientError:
    return TransientError(
        f"the ids of published rows cannot be kept in a temporary file ({error}): make room, or point TMPDIR to a folder"
        " that has it"
    )
