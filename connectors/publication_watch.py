"""Notices that the publication is not the one any more that a session began with.

Rows that are written while a publication lacks their table are not in the stream, and PostgreSQL does not say so: since
release 18 it even goes on without a publication at all. The next session finds what is missing and publishes it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import TracebackType
from typing import Final, Self

import psycopg

from connectors.errors import MissingPublicationError
from connectors.postgres.slot import publication_fingerprint

JOIN_SECONDS: Final = 2.0


class PublicationWatch:
    """A thread that looks every few seconds, while the block runs, on a connection that nobody else uses meanwhile."""

    def __init__(
        self,
        connection: psycopg.Connection,
        publication: str,
        tables: Collection[tuple[str, str]],
        *,
        expected: str,
        every_seconds: float,
    ) -> None:
        self._connection = connection
        self._publication = publication
        self._tables = tables
        self._expected = expected
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publication watch", daemon=True)
        self.has_changed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self.has_changed and not self._ended.wait(self._every_seconds):
            try:
                found = publication_fingerprint(self._connection, self._publication, self._tables)
            except MissingPublicationError:
                found = ""
            except (psycopg.Error, OSError):
                return  # the connection is gone, or closed under a server that hangs: the session sees for itself
            self.has_changed = found != self._expected
