"""Faust's transport with bookkeeping of its own, so that an offset is committed only when all before it are done.

Faust's own bookkeeping loses messages that are acked out of order, and never catches up behind transaction markers.
Here every offset is noted in its partition's tracker (pipeline/core/tracker.py) where it is fetched, in the consumer's
thread, before anything can drop it; what is committed is the tracker's next offset and nothing else.

A topic that was deleted and made again starts a new log at 0, under offsets that Faust and the trackers know from the
old one. That is noticed, and the partition is begun anew; where messages of the old log are not done yet, whose offsets
would be taken for the new one's, the worker ends instead and begins anew as a whole.

What is overridden is private to Faust 0.15.3 and aiokafka, which pyproject.toml pins;
tests/unit/test_delivery_transport.py fails when a new version renames any of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import structlog
import uvloop
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from pipeline.core.tracker import CompletionTracker
from pipeline.delivery.unreadable import read_what_is_unreadable

__all__ = [
    "TP",
    "NewLogError",
    "OrderedConsumer",
    "OrderedConsumerThread",
    "OrderedTransport",
    "Origin",
    "broker_addresses",
]

log = structlog.get_logger(__name__)

# Longest wait of one call for messages; between two calls it is looked whether to end.
FETCH_SECONDS = 1.0
# A fetch can bring hundreds; timers and answers of receivers get their turn between these.
MESSAGES_BETWEEN_PAUSES = 100


class NewLogError(Exception):
    """The log of a partition was begun anew while messages of the old one were under way."""


class Origin(NamedTuple):
    """Where a message came from. The generation tells one assignment of a partition from the next."""

    topic: str
    partition: int
    generation: int
    offset: int


class OrderedConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]  # the driver has no types
    """Fetches committed records only, and tells the consumer of each one before anybody else sees it.

    A record that cannot be parsed is fetched as a damaged one (pipeline/delivery/unreadable.py).
    """

    def _create_worker_consumer(self, transport: Any) -> Any:
        read_what_is_unreadable()
        consumer = super()._create_worker_consumer(transport)
        # The driver reads uncommitted records unless Faust's own transactions are on.
        consumer._isolation_level = "read_committed"
        return consumer

    async def _fetch_records(
        self,
        consumer: Any,
        active_partitions: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's signature
        max_records: int | None = None,
    ) -> Any:
        records = await super()._fetch_records(consumer, active_partitions, timeout=timeout, max_records=max_records)
        # Nothing is awaited from the fetch to here, so records and positions belong together; and a caller that
        # was cancelled meanwhile drops records that are on the books already.
        subscription = consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is not None:
            positions = {
                tp: assignment.state_value(tp).position
                for tp in assignment.tps
                if assignment.state_value(tp).has_valid_position
            }
            ends = {tp: assignment.state_value(tp).highwater for tp in positions}
            self.consumer.note_fetched(consumer._coordinator.generation, records, positions, ends)
        return records


class OrderedConsumer(driver.Consumer):  # type: ignore[misc]
    """Consumer whose commits follow the trackers. Its public additions take an Origin."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trackers: dict[TP, CompletionTracker] = {}
        self._ends: dict[TP, int] = {}
        # The consumer's thread notes what was fetched, the event loop does everything else.
        self._trackers_lock = threading.Lock()

    def note_fetched(
        self,
        generation: int,
        records: Mapping[Any, Any],
        positions: Mapping[Any, int],
        ends: Mapping[Any, int | None],
    ) -> None:
        """Note a fetch: its records by partition, where each partition's next fetch begins, and where its log ends.

        An end is None where it is not known yet. Raises NewLogError.
        """
        with self._trackers_lock:
            for tp, position in positions.items():
                tracker = self._trackers.get(tp)
                if tracker is not None and tracker.generation == generation:
                    if self._is_new_log(tp, tracker, position, ends.get(tp)):
                        tracker = self._begin_anew(tp, tracker)
                    self._ends[tp] = ends.get(tp) or 0
                    tracker.fetched([record.offset for record in records.get(tp, ())], position)

    def _is_new_log(self, tp: TP, tracker: CompletionTracker, position: int, end: int | None) -> bool:
        """Whether what was read or committed before lies behind the end of the log, which is read from below that.

        The end alone would not do: a new leader of the same log may for a moment say less than the old one did.
        """
        known = max(tracker.fetched_to, self._read_offset.get(tp) or 0)
        return end is not None and end < known and position < known

    def _begin_anew(self, tp: TP, tracker: CompletionTracker) -> CompletionTracker:
        """Forget the offsets of the old log. No message is on its way to its reader: the reader asks for the next."""
        if tracker.unsettled:
            del self._trackers[tp]
            raise NewLogError(
                f"{tp.topic}/{tp.partition} was made again while {tracker.unsettled} messages of the old one were under "
                "way; start the worker again, and what they stood for is found in the ledger"
            )
        log.error("partition was made again, reading it from its beginning", topic=tp.topic, partition=tp.partition)
        self._read_offset[tp] = None
        self._trackers[tp] = CompletionTracker(tracker.generation)
        return self._trackers[tp]

    def admit(self, origin: Origin) -> bool:
        """Whether this message is to be handled: it belongs to the current assignment and was not seen in it before."""
        with self._trackers_lock:
            tracker = self._current(origin)
            return tracker is not None and tracker.admit(origin.offset)

    def is_current(self, origin: Origin) -> bool:
        """Whether the assignment that the message came in still holds."""
        return self._current(origin) is not None

    def done(self, origin: Origin) -> bool:
        """The message is settled or parked. False where its assignment is over: another worker reads it again."""
        with self._trackers_lock:
            tracker = self._current(origin)
            return tracker is not None and tracker.done(origin.offset)

    def unsettled(self, tp: TP) -> int:
        """Messages of a partition that were fetched and are not done."""
        tracker = self._trackers.get(tp)
        return 0 if tracker is None else tracker.unsettled

    def unsettled_in_all(self) -> int:
        """Messages of all partitions that were fetched and are not done."""
        return sum(tracker.unsettled for tracker in list(self._trackers.values()))

    def lag(self) -> int:
        """Offsets between what is done and where the logs end, over the partitions of this assignment.

        Transaction markers count: each is an offset without a message.
        """
        return sum(
            max(0, self._ends.get(tp, 0) - tracker.next_offset)
            for tp, tracker in list(self._trackers.items())
            if tracker.next_offset > 0
        )

    def _current(self, origin: Origin) -> CompletionTracker | None:
        tracker = self._trackers.get((origin.topic, origin.partition))
        return tracker if tracker is not None and tracker.generation == origin.generation else None

    # From here on: what Faust calls.

    def _new_consumer_thread(self) -> OrderedConsumerThread:
        return OrderedConsumerThread(self, loop=self.loop, beacon=self.beacon, thread_loop=uvloop.new_event_loop())

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        with self._trackers_lock:
            self._trackers = {tp: CompletionTracker(generation_id) for tp in assigned}
        await super().on_partitions_assigned(assigned, generation_id)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        with self._trackers_lock:
            for tp in revoked:
                self._trackers.pop(tp, None)
        await super().on_partitions_revoked(revoked)

    def ack(self, message: Any) -> bool:
        message.acked = True
        return self.done(Origin(message.topic, message.partition, message.generation_id, message.offset))

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp in list(self._trackers) if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        with self._trackers_lock:
            tracker = self._trackers.get(tp)
            return tracker.next_offset if tracker is not None and tracker.next_offset > 0 else None

    def _should_commit(self, tp: TP, offset: int) -> bool:
        # Not only what is higher: a log that was begun anew is lower.
        return bool(offset != self._committed_offset.get(tp))

    async def _drain_messages(self, fetcher: Any) -> None:
        """Hand what arrives to the agent's stream, a fetch at a time.

        Faust's own loop makes four tasks for each message, to notice at once that the flow is suspended; here they are
        made for a fetch. Nor are gaps noted: an offset without a message is never fetched.
        """
        try:
            while not (self.should_stop or fetcher.should_stop):
                messages = [message async for message in self.getmany(timeout=FETCH_SECONDS)]
                if messages:
                    await self.wait_first(self._hand_over(messages), self.suspend_flow.wait())
                else:
                    await asyncio.sleep(0)
        except (asyncio.CancelledError, *self.consumer_stopped_errors):
            if not self.transport.app.should_stop:
                raise

    async def _hand_over(self, messages: list[tuple[TP, Any]]) -> None:
        """What is left when the flow is suspended, or the group has moved on, is dropped: it is read again, from the
        offset that is committed.
        """
        for number, (tp, message) in enumerate(messages, start=1):
            if not self.flow_active or message.generation_id != self.app.consumer_generation_id:
                return
            read_offset = self._read_offset[tp]
            if read_offset is None or message.offset >= read_offset:
                await self.callback(message)
                self._read_offset[tp] = message.offset
            if number % MESSAGES_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust would report partitions that are held back on purpose as stuck."""


class OrderedTransport(driver.Transport):  # type: ignore[misc]
    """Set it by ``app.transport = OrderedTransport(urls, app)``."""

    Consumer = OrderedConsumer


# mode gives each subclass a logger of its module; what these say is Faust's.
for _kind in (OrderedConsumerThread, OrderedConsumer, OrderedTransport):
    _kind.logger = driver.logger


def broker_addresses(bootstrap_servers: str) -> Iterable[str]:
    """``host:port`` of each broker in a comma-separated list."""
    return (address.strip() for address in bootstrap_servers.split(",") if address.strip())
