"""One delivery's whole story in order, from the ledger and from what the audit recorded. Pure.

The two are told beside each other: what only one of them has is told as well, and where they contradict each other, the
story says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pipeline.ledger.audit import RecordedMessage
from pipeline.ledger.story import Admission, LoggedAttempt, OperatorAct, OutboxEntry

XID_EPOCH = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What both witnesses hold of one delivery. ``admission`` None: the ledger does not know it."""

    delivery_id: str
    admission: Admission | None
    outbox: Sequence[OutboxEntry] = ()
    attempts: Sequence[LoggedAttempt] = ()
    records: Sequence[RecordedMessage] = ()
    acts: Sequence[OperatorAct] = ()


@dataclass(frozen=True, slots=True)
class Chapter:
    """One thing that happened: admitted, dispatched, attempted, operator, or settled."""

    at: datetime
    what: str
    facts: dict[str, object]
    """Only what is known."""


@dataclass(frozen=True, slots=True)
class Story:
    delivery_id: str
    state: str | None
    body_sha256: bytes | None
    """Of what was admitted, or of the first bytes on record."""
    chapters: list[Chapter]
    contradictions: list[str] = field(default_factory=list)


def tell(facts: Facts) -> Story:
    """Put it in order, and compare the witnesses."""
    admission = facts.admission
    dispatched = [record for record in facts.records if record.attempt is None]
    attempted = [record for record in facts.records if record.attempt is not None]
    hashes = [record.body_sha256 for record in facts.records if record.body_sha256 is not None]
    body = admission.body_sha256 if admission is not None else next(iter(hashes), None)
    chapters = [
        *_admitted(admission, facts.outbox),
        *(_act(act, facts.outbox) for act in facts.acts),
        *_dispatches(facts.outbox, dispatched),
        *_attempts(facts.attempts, attempted),
        *_settled(admission),
    ]
    return Story(
        facts.delivery_id,
        None if admission is None else admission.state,
        body,
        # What happened in one moment stays in the order of causes, in which it was put together.
        sorted(chapters, key=lambda chapter: chapter.at),
        list(_contradictions(facts, body)),
    )


def _admitted(admission: Admission | None, outbox: Sequence[OutboxEntry]) -> Iterator[Chapter]:
    if admission is None:
        return
    first = next((entry for entry in outbox if entry.reason == "admitted"), None)
    transaction, lsn = admission.admitted_in, admission.admitted_lsn
    if first is not None and (transaction is None or int(transaction) % XID_EPOCH != int(first.transaction)):
        # Its event had been admitted before, or by a version that noted no transaction.
        transaction, lsn = first.transaction, None
    yield Chapter(
        admission.created_at,
        "admitted",
        _known(
            event_id=admission.event_id,
            event_type=admission.event_type,
            destination_id=admission.destination_id,
            by=admission.admitted_by,
            transaction=transaction,
            lsn=lsn,
            deliver_at=admission.deliver_at,
            body_sha256=admission.body_sha256,
        ),
    )


def _dispatches(outbox: Sequence[OutboxEntry], records: Sequence[RecordedMessage]) -> Iterator[Chapter]:
    entries = {entry.dispatch_seq: entry for entry in outbox}
    told: set[int | None] = set()
    for record in records:
        entry = entries.get(record.dispatch_seq or 0)
        is_first = record.dispatch_seq not in told
        told.add(record.dispatch_seq)
        yield Chapter(
            entry.created_at if entry is not None and is_first else record.logged_at,
            "dispatched",
            _known(
                dispatch_seq=record.dispatch_seq,
                reason=record.reason or (entry.reason if entry else None),
                is_repeated=None if is_first else True,
                transaction=None if entry is None else entry.transaction,
                **_place(record),
            ),
        )
    for entry in outbox:
        if entry.dispatch_seq not in told:
            yield Chapter(
                entry.created_at,
                "dispatched",
                _known(
                    dispatch_seq=entry.dispatch_seq,
                    reason=entry.reason,
                    transaction=entry.transaction,
                    audit="not recorded",
                ),
            )


def _attempts(logged: Sequence[LoggedAttempt], records: Sequence[RecordedMessage]) -> Iterator[Chapter]:
    waiting = {(attempt.attempt, attempt.result): attempt for attempt in logged}
    for record in records:
        entry = waiting.pop((record.attempt or 0, record.result or ""), None)
        yield Chapter(
            record.started_at or record.logged_at,
            "attempted",
            _known(
                attempt=record.attempt,
                dispatch_seq=record.dispatch_seq,
                result=record.result,
                outcome=record.outcome or (entry.outcome if entry else None),
                status=record.status if record.outcome is not None else (entry.status if entry else None),
                ambiguous=record.ambiguous,
                worker_id=record.worker_id,
                key_ids=record.key_ids,
                duration_seconds=None if record.duration_us is None else record.duration_us / 1_000_000,
                **_place(record),
            ),
        )
    for entry in waiting.values():
        yield Chapter(
            entry.started_at,
            "attempted",
            _known(
                attempt=entry.attempt,
                dispatch_seq=entry.dispatch_seq,
                result=entry.result,
                outcome=entry.outcome,
                status=entry.status,
                ambiguous=entry.ambiguous,
                worker_id=entry.worker_id,
                key_ids=entry.key_ids,
                duration_seconds=entry.duration_seconds,
                body_sha256=entry.body_sha256,
                audit="not recorded",
            ),
        )


def _act(act: OperatorAct, outbox: Sequence[OutboxEntry]) -> Chapter:
    # A run that is one statement's is written behind what it did, in the same transaction.
    done = [entry.created_at for entry in outbox if entry.transaction == act.transaction]
    return Chapter(
        min([act.started_at, *done]),
        "operator",
        _known(
            kind=act.kind,
            operator=act.operator,
            reason=act.reason,
            run_id=str(act.run_id),
            about="this delivery" if act.is_named else "its destination",
            verdict=act.verdict,
            dispatch_seq=act.replayed_seq,
            error=act.error,
        ),
    )


def _settled(admission: Admission | None) -> Iterator[Chapter]:
    if admission is not None and admission.settled_at is not None:
        yield Chapter(admission.settled_at, admission.state, _known(outcome=admission.last_outcome))


def _contradictions(facts: Facts, body: bytes | None) -> Iterator[str]:
    for record in facts.records:
        what = f"attempt {record.attempt}" if record.attempt is not None else f"dispatch {record.dispatch_seq}"
        if record.body_sha256 != body:
            yield f"{what} at {_place(record)['place']}: other bytes than those admitted"
        if facts.admission is not None and record.destination_id != facts.admission.destination_id:
            yield f"{what} at {_place(record)['place']}: to destination {record.destination_id}"
    for entry in facts.attempts:
        if entry.body_sha256 != body:
            yield f"attempt {entry.attempt} in the ledger: other bytes than those admitted"
    logged = {(entry.attempt, entry.result): entry for entry in facts.attempts}
    for record in facts.records:
        found = logged.get((record.attempt or 0, record.result or ""))
        if found is None or record.outcome is None:
            continue
        if (record.outcome, record.status, record.ambiguous, record.worker_id) != (
            found.outcome,
            found.status,
            found.ambiguous,
            found.worker_id,
        ):
            yield f"attempt {record.attempt}: the ledger and the audit tell it differently"
    if facts.admission is None and facts.records:
        yield "the ledger does not know this delivery"


def _place(record: RecordedMessage) -> dict[str, object]:
    return {
        "place": f"{record.topic}/{record.partition}/{record.log_offset}",
        "logged_at": record.logged_at,
        "recorded_at": record.recorded_at,
        "link": record.chain_seq,
        "body_sha256": record.body_sha256,
    }


def _known(**facts: object) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}
