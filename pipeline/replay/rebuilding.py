"""Restoring rows that the ledger has lost, as after a restore of the database: first what the attempts topic knows, then
the dispatch topic, whose messages have all that a delivery is made of.

No second logical effect comes of it: ids and bytes are the messages' own, what is known to have succeeded comes back as
succeeded, and what is due gets its next dispatch number only after the whole topic was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from confluent_kafka import Message

from pipeline.ledger import rebuild as ledger_rebuild
from pipeline.ledger import replay as ledger_replay
from pipeline.ledger.rebuild import ATTEMPT_ID_MAX, Evidence, Logged
from pipeline.offsets.places import Place
from pipeline.replay.dispatch_messages import Named, Refused, sort_messages
from pipeline.replay.errors import ReplayError
from pipeline.replay.topic_scan import Batch
from pipeline.replay.work import Prepared, Work, drain
from topics.codecs import DISPATCH_SEQ_MAX, Attempt, RecordError, decode_attempt
from topics.declarations import ATTEMPTS, DISPATCH

RELEASE_ROWS: Final = 1_000


def read_attempts(work: Work) -> bool:
    """Whether all is read; False where something else is wished. Raises ReplayError."""

    def prepare(batch: Batch) -> Prepared:
        found, refused = evidence_of(batch.messages)

        def act() -> None:
            ledger_rebuild.raise_attempt_ids(work.ledger, work.run_id, found)
            ledger_rebuild.gather(work.ledger, work.run_id, found)

        return Prepared(refused, act)

    return drain(work, work.settings.name(ATTEMPTS), "evidence", prepare)


def rebuild_from_topic(work: Work) -> bool:
    """Whether all is read; False where something else is wished. Raises ReplayError."""

    def prepare(batch: Batch) -> Prepared:
        found = sort_messages(batch.messages)
        dispatches = newest_of_each(found.named)
        return Prepared(
            found.broken,
            lambda: work.progress.take(ledger_rebuild.rebuild(work.ledger, work.run_id, dispatches)),
        )

    return drain(work, work.settings.name(DISPATCH), "select", prepare)


def release_rebuilt(work: Work) -> bool:
    """What was rebuilt as due becomes due along the run's rate, and the reconciler takes it from there."""
    released = 0
    while True:
        with work.ledger.transaction():
            if not work.may_go_on("dispatch"):
                return False
            found = ledger_replay.standing(work.ledger, work.run_id)
            if found is None:
                raise ReplayError(f"run {work.run_id} has lost its record")
            last_id, rows = ledger_rebuild.release_rebuilt(
                work.ledger,
                work.run_id,
                after_id=found.after_id,
                before=released,
                rate_per_second=work.plan.rate_per_second,
                page_rows=RELEASE_ROWS,
            )
            if last_id is None:
                return True
            after = {"after_destination": "", "after_time": found.after_time, "after_id": last_id}
            ledger_replay.move_ledger_cursor(work.ledger, work.run_id, after)
        released += rows
        work.report(work.progress)


def evidence_of(messages: Iterable[tuple[Place, Message]]) -> tuple[list[Evidence], list[Refused]]:
    """Attempts, and what is none. Pure."""
    found: list[Evidence] = []
    refused: list[Refused] = []
    for place, message in messages:
        attempt = decode_attempt(message.value())
        if isinstance(attempt, RecordError):
            refused.append(Refused(place, message, str(attempt), []))
        elif (problem := _implausible(attempt)) is not None:
            refused.append(Refused(place, message, problem, []))
        else:
            found.append(
                Evidence(
                    attempt_id=attempt.attempt_id,
                    delivery_id=attempt.delivery_id,
                    attempt=attempt.attempt,
                    dispatch_seq=attempt.dispatch_seq,
                    result=attempt.result,
                    outcome=attempt.outcome,
                    status=attempt.status,
                    recorded_at=attempt.recorded_at,
                )
            )
    return found, refused


def newest_of_each(named: Iterable[Named]) -> list[Logged]:
    """Of each delivery in a batch the message with the highest number, in the order of their first. Pure."""
    newest: dict[str, Named] = {}
    for entry in named:
        before = newest.get(entry.dispatch.delivery_id)
        if before is None or before.dispatch.dispatch_seq < entry.dispatch.dispatch_seq:
            newest[entry.dispatch.delivery_id] = entry
    return [_logged(entry) for entry in newest.values()]


def _logged(entry: Named) -> Logged:
    dispatch = entry.dispatch
    timestamp_ms = max(0, entry.message.timestamp()[1])
    return Logged(
        delivery_id=dispatch.delivery_id,
        destination_id=dispatch.destination_id,
        event_id=dispatch.event_id,
        event_type=dispatch.event_type,
        content_type=dispatch.content_type,
        headers=dispatch.headers,
        payload=dispatch.payload,
        message_id=dispatch.message_id,
        dispatch_seq=dispatch.dispatch_seq,
        logged_at=datetime.fromtimestamp(timestamp_ms / 1000, UTC),
    )


def _implausible(attempt: Attempt) -> str | None:
    for name, number, largest in (
        ("attempt_id", attempt.attempt_id, ATTEMPT_ID_MAX),
        ("attempt", attempt.attempt, DISPATCH_SEQ_MAX),
        ("dispatch_seq", attempt.dispatch_seq, DISPATCH_SEQ_MAX),
    ):
        if not 0 <= number <= largest:
            return f"{name}: is not a number from 0 to {largest}"
    return "delivery_id: holds a character that no id has" if "\0" in attempt.delivery_id else None
