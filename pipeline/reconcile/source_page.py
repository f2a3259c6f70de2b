"""One page of a source: claimed, admitted and counted in one transaction, or not at all."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, replace
from uuid import UUID

from pipeline.ledger.admission import Admitted, Refused, admit_many
from pipeline.ledger.pool import Connection
from pipeline.ledger.sources import count_source_run, current_modes, forget_refusals
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_queries import claim_page
from pipeline.reconcile.source_result import Tally
from pipeline.reconcile.source_rows import ClaimedRow, SourceError


@dataclass(frozen=True, slots=True)
class Page:
    """What a committed page was. ``tally`` is that of the run with it."""

    tally: Tally
    event_ids: frozenset[str]


class PageRefusedError(Exception):
    """Takes the page back; ``reasons`` by event id."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()
        self.reasons = reasons


async def take_page(
    connection: Connection,
    source: Source,
    run_id: UUID,
    tally: Tally,
    *,
    passed_over: Set[str],
    before: Set[str],
    limit: int,
) -> Page | None:
    """Claim and admit at most ``limit`` rows, none of ``passed_over``; None where the claim gives none.

    ``before``: what the page before admitted. Raises PageRefusedError, SourceError, and psycopg.Error for what SQL says; then
    nothing has changed.
    """
    async with connection.transaction():
        rows = await _claim(connection, source, passed_over=passed_over, before=before, limit=limit)
        if not rows:
            return None
        event_ids = frozenset(row.event.event_id for row in rows)
        tally = await _admit(connection, rows, tally)
        await forget_refusals(connection, source.source_id, list(event_ids))
        await count_source_run(connection, run_id, asdict(tally))
    return Page(tally, event_ids)


async def try_claim(connection: Connection, source: Source, *, passed_over: Set[str]) -> None:
    """Claim one row and take it back. Raises as ``take_page`` does."""
    async with connection.transaction(force_rollback=True):
        await _claim(connection, source, passed_over=passed_over, before=frozenset(), limit=1)


async def _claim(
    connection: Connection, source: Source, *, passed_over: Set[str], before: Set[str], limit: int
) -> list[ClaimedRow]:
    """Of the shards that are live, and stay so until the caller's transaction ends."""
    modes = await current_modes(connection, source.source_id, shard_count=source.shard_count)
    if not (modes.enabled and modes.live):
        return []
    rows = await claim_page(connection, source, shards=modes.live, refused=sorted(passed_over), limit=limit)
    if again := {row.event.event_id for row in rows} & (before | passed_over):
        raise SourceError(
            f"claim gives {min(again)!r} again: it must take a row off what is due, and pass over %(refused)s"
        )
    return rows


async def _admit(connection: Connection, rows: Sequence[ClaimedRow], tally: Tally) -> Tally:
    """The tally with this page. Raises PageRefusedError where a row of it cannot be admitted."""
    reasons = {row.event.event_id: row.refusal for row in rows if row.refusal is not None}
    if reasons:
        raise PageRefusedError(reasons)
    answers = await admit_many(connection, [row.event for row in rows])
    reasons = {
        row.event.event_id: f"{answer.sqlstate}: {answer.message}"
        for row, answer in zip(rows, answers, strict=True)
        if isinstance(answer, Refused)
    }
    if reasons:
        raise PageRefusedError(reasons)
    made = [answer for answer in answers if isinstance(answer, Admitted)]
    admitted = sum(any(delivery.created for delivery in answer.deliveries) for answer in made)
    unsubscribed = sum(not answer.deliveries for answer in made)
    return replace(
        tally,
        pages=tally.pages + 1,
        examined=tally.examined + len(rows),
        admitted=tally.admitted + admitted,
        unsubscribed=tally.unsubscribed + unsubscribed,
        existing=tally.existing + len(rows) - admitted - unsubscribed,
    )
