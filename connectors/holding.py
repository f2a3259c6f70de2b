"""Keys whose later rows wait in quarantine behind an earlier one, so that their order survives. Bounded.

What is held lies in the control topic, written in the transaction of the row that began it, so that a connector that
starts anew holds the same keys.
"""

from __future__ import annotations

from connectors.control import Held, Subject, encode_subject, encode_value
from connectors.errors import ConfigurationError
from connectors.quarantine import HEADERS_BYTES_MAX
from connectors.router import Record


class Holding:
    """The held keys of one slot, and the records that tell of them."""

    def __init__(
        self, control_topic: str, database: str, slot: str, held: dict[tuple[str, bytes], Held], keys_max: int
    ) -> None:
        self._topic = control_topic
        self.database = database
        self._slot = slot
        self._keys_max = keys_max
        self.keys = held
        """By table and key. Empty almost always, which is quick to see."""

    def hold(self, table: str, key: bytes, why: Held) -> Record:
        """Hold a key from now on; the record goes into the same transaction as its first row.

        Raises ConfigurationError where no more keys can be remembered.
        """
        if len(self.keys) >= self._keys_max and (table, key) not in self.keys:
            raise ConfigurationError(
                f"{len(self.keys)} keys are held behind rows in quarantine, and no more may be: {why.reason}."
                " Release some, or let more be held"
            )
        if len(key) > HEADERS_BYTES_MAX:
            raise ConfigurationError(
                f"a row of table {table} cannot be published, and its key of {len(key)} bytes is too long to be held:"
                f" {why.reason}. Let later rows of such keys pass"
            )
        self.keys[table, key] = why
        return Record(self._topic, self._subject(table, key), encode_value(why), [])

    def free(self, table: str, key: bytes) -> Record:
        """Hold a key no longer; the record goes into the transaction that publishes its last row."""
        self.keys.pop((table, key), None)
        return Record(self._topic, self._subject(table, key), None, [])

    def _subject(self, table: str, key: bytes) -> bytes:
        return encode_subject(Subject(database=self.database, slot=self._slot, kind="held", table=table, key=key))
