"""The chain of hashes over what was recorded of one partition, and what is wrong with one. Pure.

Each link hashes the hash before it and its own content, which tells its place. So a link that was changed no longer has
its hash; one whose hash was made anew no longer fits the link behind it; and one that is gone leaves a gap. What was cut
off at the end is found by what stands apart from the rows: the tip, and the anchors. Hashes have no secret: whoever may
write all tables can make a whole chain anew, and only a copy of an anchor, kept elsewhere, shows that.

The database computes the same in ``outrider_audit.content`` and ``outrider_audit.link``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

GENESIS = bytes(32)
KEEP_DAYS_MIN = 31
"""Retention takes nothing younger, so a tombstone over younger rows is a forgery."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Defect = Literal["changed", "unlinked", "missing", "foreign", "cut", "anchor", "forged_tombstone"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded message, as the table has it. ``content`` is what was hashed, after the word "record"."""

    chain_seq: int
    log_offset: int
    content: tuple[object, ...]
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Links ``from_seq`` to ``to_seq`` were removed by retention. A link itself, at ``chain_seq``."""

    topic: str
    partition: int
    chain_seq: int
    from_seq: int
    to_seq: int
    first_offset: int
    last_offset: int
    first_logged_at: datetime
    last_logged_at: datetime
    before_hash: bytes
    after_hash: bytes
    removed_at: datetime
    removed_by: str
    keep_days: int
    hash: bytes

    @property
    def content(self) -> tuple[object, ...]:
        return (
            self.topic,
            self.partition,
            self.chain_seq,
            self.from_seq,
            self.to_seq,
            self.first_offset,
            self.last_offset,
            microseconds(self.first_logged_at),
            microseconds(self.last_logged_at),
            self.before_hash.hex(),
            self.after_hash.hex(),
            microseconds(self.removed_at),
            self.removed_by,
            self.keep_days,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where: links ``first_seq`` to ``last_seq`` of the chain."""

    topic: str
    partition: int
    defect: Defect
    first_seq: int
    last_seq: int
    text: str

    def __str__(self) -> str:
        links = (
            f"link {self.first_seq}"
            if self.first_seq == self.last_seq
            else f"links {self.first_seq} to {self.last_seq}"
        )
        return f"{self.topic} partition {self.partition}, {links}: {self.defect}: {self.text}"


@dataclass(frozen=True, slots=True)
class Known:
    """What stands about a chain apart from its rows: where it ends, and hashes at places of it."""

    topic: str
    partition: int
    tip: tuple[int, bytes] | None
    anchors: Mapping[int, bytes] = field(default_factory=dict)
    kept_anchors: Mapping[int, bytes] = field(default_factory=dict)
    """Copies that were kept elsewhere."""
    tombstones: tuple[Tombstone, ...] = ()


def microseconds(moment: datetime) -> int:
    """Since 1970, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


def link(before: bytes, kind: str, content: Iterable[object]) -> bytes:
    """The hash of a link. ``content`` holds strings, integers, booleans, None, and lists of these."""
    text = json.dumps([kind, *content], ensure_ascii=False)
    return hashlib.sha256(before + text.encode()).digest()


def check_chain(known: Known, entries: Iterable[Entry]) -> Iterator[Finding]:
    """All that is wrong with one chain. ``entries`` come in the order of ``chain_seq``, and are read once."""
    return _Walk(known).findings(entries)


class _Walk:
    """Goes along a chain; ``_seq`` and ``_hash`` are those of the last link that was passed."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._graves = {stone.from_seq: stone for stone in known.tombstones}
        self._stones = {stone.chain_seq: stone for stone in known.tombstones}
        self._seq = 0
        self._hash = GENESIS
        self._offset: int | None = None

    def findings(self, entries: Iterable[Entry]) -> Iterator[Finding]:
        for entry in entries:
            if entry.chain_seq <= self._seq:
                yield self._finding(
                    "foreign",
                    entry.chain_seq,
                    entry.chain_seq,
                    f"a second row, offset {entry.log_offset}, was put here",
                )
                continue
            yield from self._advance(entry.chain_seq)
            yield from self._pass(entry.chain_seq, "record", entry.content, entry.hash, f"offset {entry.log_offset}")
            self._offset = entry.log_offset
        yield from self._end()

    def _advance(self, to_seq: int) -> Iterator[Finding]:
        """Pass what lies before ``to_seq`` without rows: tombstones, what they stand for, and gaps."""
        while self._seq + 1 < to_seq:
            following = self._seq + 1
            if (stone := self._stones.get(following)) is not None:
                yield from self._pass(following, "tombstone", stone.content, stone.hash, "a tombstone")
            elif (grave := self._graves.get(following)) is not None and grave.to_seq < to_seq:
                yield from self._bury(grave)
            else:
                marks = [seq for seq in (*self._stones, *self._graves) if self._seq < seq < to_seq and seq > following]
                last = min(marks, default=to_seq) - 1
                behind = "at the beginning" if self._offset is None else f"behind offset {self._offset}"
                yield self._finding("missing", following, last, f"{last - self._seq} rows {behind} are gone")
                self._seq, self._hash = last, self._known.anchors.get(last, b"")

    def _pass(self, seq: int, kind: str, content: tuple[object, ...], stored: bytes, what: str) -> Iterator[Finding]:
        # Behind a gap the hash before is not known, so the link itself cannot be checked, only those that follow.
        if self._hash and link(self._hash, kind, content) != stored:
            yield self._finding(
                "changed",
                seq,
                seq,
                f"{what} does not have its hash: it was changed, or the link before it and its hash",
            )
        self._seq, self._hash = seq, stored
        yield from self._check_anchor(seq, stored)

    def _bury(self, grave: Tombstone) -> Iterator[Finding]:
        """Step over what retention took."""
        if self._hash and self._hash != grave.before_hash:
            yield self._finding(
                "unlinked", self._seq, self._seq, "it is not the one that stood before the rows that retention removed"
            )
        if (grave.removed_at - grave.last_logged_at).days < max(KEEP_DAYS_MIN, grave.keep_days):
            yield self._finding(
                "forged_tombstone",
                grave.chain_seq,
                grave.chain_seq,
                "it stands for rows that retention does not take yet",
            )
        self._seq, self._hash = grave.to_seq, grave.after_hash
        yield from self._check_anchor(grave.to_seq, grave.after_hash)

    def _check_anchor(self, seq: int, stored: bytes) -> Iterator[Finding]:
        for anchors, whose in (
            (self._known.anchors, "the anchor"),
            (self._known.kept_anchors, "the anchor kept elsewhere"),
        ):
            if anchors.get(seq, stored) != stored:
                yield self._finding("anchor", seq, seq, f"{whose} has another hash: the chain up to here was made anew")

    def _end(self) -> Iterator[Finding]:
        """What should come behind the last row: tombstones, and nothing more."""
        known = self._known
        ends = {
            "the chain's tip": 0 if known.tip is None else known.tip[0],
            "an anchor": max(known.anchors, default=0),
            "an anchor kept elsewhere": max(known.kept_anchors, default=0),
        }
        witness, last = max(ends.items(), key=lambda item: item[1])
        last_stone = max(self._stones, default=0)
        yield from self._advance(last_stone + 1)
        if last > self._seq:
            while (following := self._graves.get(self._seq + 1)) is not None and following.to_seq <= last:
                yield from self._bury(following)
        if last > self._seq:
            yield self._finding(
                "cut", self._seq + 1, last, f"{witness} tells of {last - self._seq} more rows, which are gone"
            )
        elif known.tip is None:
            if self._seq:
                yield self._finding("cut", self._seq, self._seq, "the record of the chain's tip is gone")
        elif known.tip != (self._seq, self._hash):
            yield self._finding("unlinked", self._seq, self._seq, "the chain's tip is another than its last row")

    def _finding(self, defect: Defect, first: int, last: int, text: str) -> Finding:
        return Finding(self._known.topic, self._known.partition, defect, first, last, text)
