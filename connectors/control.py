"""What operators ask of a connector and what it must not forget: small records in a compacted topic. Pure.

Each record stands for one thing of one slot; the last one under a key counts, and one without a value is gone:

- ``pause``: whether the connector is to rest, with who asked and why. Written by an operator.
- ``release``: a request to publish quarantined rows, and later, under the same key, what came of it. Written by an
  operator, answered by the connector in the transaction that publishes the last of them.
- ``held``: a key whose later rows wait in quarantine. Written by the connector, in the transaction of the row.

A connector reads them to the end after it has fenced its predecessors, and from there on as they come.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

RELEASE_ENTRIES_MAX: Final = 1_000
REFUSALS_TOLD_MAX: Final = 20


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key of a record, as JSON. ``table`` and ``key`` are of a held key, ``key`` in base64 as msgspec writes bytes."""

    database: str
    slot: str
    kind: Literal["pause", "release", "held"]
    release_id: str = ""
    table: str = ""
    key: bytes = b""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """``at`` is the operator's clock, ISO 8601, for people."""

    is_paused: bool
    operator: str
    reason: str
    at: str


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the quarantine by their numbers, or all below ``until`` that match table and key (None: any)."""

    entries: tuple[int, ...] = ()
    until: int = 0
    table: str | None = None
    key: bytes | None = None

    def takes(self, entry: int, table: str, key: bytes) -> bool:
        if self.entries:
            return entry in self.entries
        return entry < self.until and self.table in (None, table) and self.key in (None, key)


class Refusal(msgspec.Struct, frozen=True):
    """An entry that still cannot be published, and why."""

    entry: int
    reason: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a release: numbers of rows, and the first of those that were refused."""

    released: int = 0
    gone: int = 0
    """The table does not hold the row any more."""
    given_up: int = 0
    refused: int = 0
    waiting: int = 0
    """Rows behind a refused one of their key."""
    refusals: tuple[Refusal, ...] = ()


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A request while ``outcome`` is None. ``gives_up``: rows that do not fit are passed over, on the record."""

    selection: Selection
    operator: str
    reason: str
    at: str
    gives_up: bool = False
    outcome: Outcome | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Why a key is held: its first row in quarantine."""

    reason: str
    row_id: str | None
    lsn: str


ControlValue: TypeAlias = Pause | Release | Held
_TYPES: Final[dict[str, type[Pause] | type[Release] | type[Held]]] = {"pause": Pause, "release": Release, "held": Held}


class ControlError(ValueError):
    """A record of the control topic that this version cannot have written."""


def encode_subject(subject: Subject) -> bytes:
    return msgspec.json.encode(subject)


def encode_value(value: ControlValue) -> bytes:
    return msgspec.json.encode(value)


class ControlState:
    """All that the records of one slot say, folded in their order. Bounded by those who write them."""

    def __init__(self, database: str, slot: str) -> None:
        self._database = database
        self._slot = slot
        self.pause: Pause | None = None
        """The last word about pausing, if there was one."""
        self.releases: dict[str, Release] = {}
        """By id, in the order in which they were asked for."""
        self.held: dict[tuple[str, bytes], Held] = {}
        """By table and key."""

    @property
    def is_paused(self) -> bool:
        return self.pause is not None and self.pause.is_paused

    @property
    def open_releases(self) -> dict[str, Release]:
        return {release_id: release for release_id, release in self.releases.items() if release.outcome is None}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in the next record; those of other slots change nothing. Raises ControlError."""
        try:
            subject = msgspec.json.decode(key or b"", type=Subject)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # says whom it means to nobody of ours, so it is no word to this slot
        if (subject.database, subject.slot) != (self._database, self._slot):
            return
        try:
            content = None if value is None else msgspec.json.decode(value, type=_TYPES[subject.kind])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ControlError(
                f"a control record cannot be read ({error}): a newer connector wrote it, or another program. Its key is {key!r}"
            ) from None
        if subject.kind == "pause":
            self.pause = content if isinstance(content, Pause) else None
        elif subject.kind == "release":
            if isinstance(content, Release):
                self.releases[subject.release_id] = content
            else:
                self.releases.pop(subject.release_id, None)
        elif isinstance(content, Held):
            self.held[subject.table, subject.key] = content
        else:
            self.held.pop((subject.table, subject.key), None)
