"""Which changes of the stream are published already, and what may be stored and confirmed. Pure.

The stream repeats what was not confirmed to PostgreSQL, while the stored position says what Kafka holds.
Positions compare as (lsn, row): see :mod:`connectors.kafka.position`.
"""

from __future__ import annotations


class Progress:
    """Follows the stream from a stored position, transaction by transaction."""

    __slots__ = ("_in_transaction", "_lsn", "_row", "_start_lsn", "_start_row", "complete_lsn")

    def __init__(self, lsn: int, row: int) -> None:
        self._start_lsn = lsn
        self._start_row = row
        self._lsn = lsn
        self._row = row
        self._in_transaction = False
        self.complete_lsn = lsn
        """No transaction whose commit record begins before this LSN is needed again."""

    @property
    def in_transaction(self) -> bool:
        return self._in_transaction

    @property
    def position(self) -> tuple[int, int]:
        """(lsn, row) to store once every change that was asked about is in Kafka. Never goes back."""
        return max((self._lsn, self._row), (self._start_lsn, self._start_row))

    def begin(self, final_lsn: int) -> None:
        """A source transaction begins whose commit record is at ``final_lsn``."""
        if self._in_transaction:
            raise ValueError("a source transaction begins inside another")
        self._in_transaction = True
        if final_lsn >= self._start_lsn:
            self._row = 0
            self._lsn = final_lsn
        else:
            self._row = -1  # lies wholly before the stored position

    def next_change(self) -> bool:
        """Count one change of the open transaction; whether it still has to be published."""
        if self._row < 0:
            return False
        self._row += 1
        return self._lsn > self._start_lsn or self._row > self._start_row

    def commit(self, end_lsn: int) -> None:
        """The open transaction ended."""
        if not self._in_transaction:
            raise ValueError("a source transaction ends that has not begun")
        self._in_transaction = False
        if self._row < 0:
            self._lsn, self._row = self._start_lsn, self._start_row
        else:
            self._lsn, self._row = end_lsn, 0
            self.complete_lsn = end_lsn

    def idle(self, server_lsn: int) -> bool:
        """Nothing before ``server_lsn`` is left to send; whether that is news worth storing."""
        if self._in_transaction or server_lsn <= self._lsn:
            return False
        self._lsn, self._row = server_lsn, 0
        self.complete_lsn = server_lsn
        return True
