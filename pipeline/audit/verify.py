"""Verifying the store: every chain from its first link to its tip, as of one moment, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import psycopg

from pipeline.audit.chain import GENESIS, Entry, Finding, Known, Tombstone, check_chain, microseconds
from pipeline.ledger.audit import (
    RecordedMessage,
    anchors_of,
    chains,
    links_of,
    tip_of,
    tombstones_of,
)

FINDINGS_MAX = 1_000
"""That are kept with their places; all are counted."""
PROGRESS_ROWS = 20_000

Place = tuple[str, int]
KeptAnchors = Mapping[Place, Mapping[int, bytes]]
"""Hash by place in the chain, by topic and partition: copies that were kept outside the database."""


@dataclass(frozen=True, slots=True)
class ChainReport:
    topic: str
    partition: int
    rows: int
    """That are there."""
    removed_rows: int
    """That retention took, each under a tombstone."""
    tip_seq: int
    tip_hash: bytes
    findings: int


@dataclass(slots=True)
class Verified:
    chains: list[ChainReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """The first FINDINGS_MAX of them."""
    finding_count: int = 0
    tombstones: list[Tombstone] = field(default_factory=list)
    """The newest of each chain: whoever may write the tables could forge one, so they are for people to look at."""

    @property
    def is_intact(self) -> bool:
        return self.finding_count == 0

    @property
    def rows(self) -> int:
        return sum(chain.rows for chain in self.chains)


def verify(
    connection: psycopg.Connection,
    *,
    topic: str | None = None,
    kept_anchors: KeptAnchors | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> Verified:
    """Check all chains, or those of one topic, within ``one_moment``. ``progress`` is told the rows so far."""
    kept = kept_anchors or {}
    verified = Verified()
    for place in sorted({*chains(connection), *kept}):
        if topic is None or place[0] == topic:
            _verify_chain(connection, place, kept.get(place, {}), verified, progress)
    return verified


def _verify_chain(
    connection: psycopg.Connection,
    place: Place,
    kept_anchors: Mapping[int, bytes],
    verified: Verified,
    progress: Callable[[int], None],
) -> None:
    topic, partition = place
    tip = tip_of(connection, topic, partition)
    stones = tuple(Tombstone(**row) for row in tombstones_of(connection, topic, partition))
    known = Known(
        topic,
        partition,
        tip=None if tip is None else (tip.chain_seq, tip.hash),
        anchors=anchors_of(connection, topic, partition),
        kept_anchors=kept_anchors,
        tombstones=stones,
    )
    rows, found = 0, 0
    before = verified.rows

    def entries() -> Iterator[Entry]:
        nonlocal rows
        for record in links_of(connection, topic, partition):
            rows += 1
            if rows % PROGRESS_ROWS == 0:
                progress(before + rows)
            yield entry_of(record)

    for finding in check_chain(known, entries()):
        found += 1
        if len(verified.findings) < FINDINGS_MAX:
            verified.findings.append(finding)
    verified.finding_count += found
    verified.tombstones += stones[-1:]
    verified.chains.append(
        ChainReport(
            topic,
            partition,
            rows=rows,
            removed_rows=sum(stone.to_seq - stone.from_seq + 1 for stone in stones),
            tip_seq=0 if tip is None else tip.chain_seq,
            tip_hash=GENESIS if tip is None else tip.hash,
            findings=found,
        )
    )


def entry_of(record: RecordedMessage) -> Entry:
    """The columns in the order in which ``outrider_audit.content`` hashes them."""
    return Entry(
        record.chain_seq,
        record.log_offset,
        (
            record.topic,
            record.partition,
            record.chain_seq,
            record.log_offset,
            microseconds(record.logged_at),
            microseconds(record.recorded_at),
            record.delivery_id,
            record.destination_id,
            record.event_id,
            record.dispatch_seq,
            record.reason,
            record.attempt,
            record.result,
            record.outcome,
            record.status,
            record.ambiguous,
            record.worker_id,
            record.key_ids,
            None if record.started_at is None else microseconds(record.started_at),
            record.duration_us,
            None if record.body_sha256 is None else record.body_sha256.hex(),
            record.defect,
        ),
        record.hash,
    )
