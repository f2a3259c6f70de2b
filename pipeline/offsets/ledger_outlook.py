"""What the ledger will do when the delivery group is moved: exact where the messages were read, else a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg
from confluent_kafka import Message

from pipeline.ledger.dispatch_standing import DispatchStanding, dispatches_on_the_way, standing_of_dispatches
from pipeline.offsets.places import NO_MESSAGES, MessageCount, Place
from pipeline.offsets.plan import LedgerOutlook, Move
from topics.codecs import RecordError, decode_dispatch
from topics.message_headers import UnreadableHeadersError, headers_of

BATCH = 1_000


class DispatchTally:
    """Asks the ledger about the dispatches of a scan, in batches, apart for those read again and those passed over."""

    def __init__(self, connection: psycopg.Connection, moves: Sequence[Move]) -> None:
        self._connection = connection
        self._skipped_places = {move.place for move in moves if move.target > move.read_from}
        self._waiting: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
        self._found = {True: DispatchStanding(), False: DispatchStanding()}
        self._broken = 0

    def add(self, place: Place, message: Message) -> None:
        """One message of the scan."""
        try:
            dispatch = decode_dispatch(message.key(), message.value(), headers_of(message))
        except UnreadableHeadersError:
            self._broken += 1
            return
        if isinstance(dispatch, RecordError):
            self._broken += 1
            return
        is_skipped = place in self._skipped_places
        self._waiting[is_skipped].append((dispatch.delivery_id, dispatch.dispatch_seq))
        if len(self._waiting[is_skipped]) >= BATCH:
            self._ask(is_skipped)

    def outlook(self, again: MessageCount, skipped: MessageCount) -> LedgerOutlook:
        """Of all that was added; `again` and `skipped` say how many messages there are."""
        self._ask(True)
        self._ask(False)
        found_again, found_skipped = self._found[False], self._found[True]
        return LedgerOutlook(
            again_stale=_rest(again, found_again.current),
            again_current=_part(again, found_again.current),
            skipped_stale=_rest(skipped, found_skipped.current),
            skipped_current=_part(skipped, found_skipped.current),
            found_until=found_skipped.found_until,
            broken=self._broken + found_again.unknown + found_skipped.unknown,
        )

    def _ask(self, is_skipped: bool) -> None:
        if self._waiting[is_skipped]:
            self._found[is_skipped] += standing_of_dispatches(self._connection, self._waiting[is_skipped])
            self._waiting[is_skipped].clear()


def outlook_unread(connection: psycopg.Connection, again: MessageCount, skipped: MessageCount) -> LedgerOutlook:
    """Without reading a message: no more are current than the ledger has dispatches on the way."""
    on_the_way = dispatches_on_the_way(connection)
    return LedgerOutlook(
        again_stale=MessageCount(max(0, again.at_least - on_the_way.current), again.at_most),
        again_current=MessageCount(0, min(on_the_way.current, again.at_most)),
        skipped_stale=MessageCount(max(0, skipped.at_least - on_the_way.current), skipped.at_most),
        skipped_current=MessageCount(0, min(on_the_way.current, skipped.at_most)),
        found_until=on_the_way.found_until if skipped.at_most else None,
    )


def counted(moves: Sequence[Move], counts: Mapping[Place, MessageCount]) -> tuple[MessageCount, MessageCount]:
    """Messages that are read again, and messages that are passed over."""
    again = sum((counts[m.place] for m in moves if m.target < m.read_from), NO_MESSAGES)
    skipped = sum((counts[m.place] for m in moves if m.target > m.read_from), NO_MESSAGES)
    return again, skipped


def _part(whole: MessageCount, part: int) -> MessageCount:
    """`part` of the messages that were read; those that were not may all belong to it."""
    return MessageCount(part, part + whole.at_most - whole.at_least)


def _rest(whole: MessageCount, part: int) -> MessageCount:
    return MessageCount(whole.at_least - part, whole.at_most - part)
