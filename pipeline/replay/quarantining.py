"""Messages that a replay cannot take go where a worker puts them, unless they are there already.

An entry is known by where its message lies. One run after another reads what the topic has, under a lock that all runs
share, before it adds something; a crash between adding and the cursor's move therefore adds nothing twice.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from pipeline.ledger.runs import in_turn
from pipeline.offsets.kafka_groups import KafkaGroups
from pipeline.offsets.places import Place, Stretch
from pipeline.replay.dispatch_messages import Refused
from pipeline.replay.errors import ReplayError
from pipeline.replay.topic_scan import TopicScan
from topics.message_headers import headers_of
from topics.quarantine_records import ORIGIN_HEADER, QuarantineRecord, quarantine_records
from topics.security import KafkaConnection

FLUSH_SECONDS: Final = 30.0
QUEUED_KIB: Final = 32 * 1024
READER_GROUP: Final = "outrider-replay-reader"  # the client wants one; nothing is joined or committed


class Origins:
    """Offsets of messages that are in quarantine, 8 bytes for each, of the partitions that a run reads."""

    def __init__(self, stretches: Mapping[Place, Stretch]) -> None:
        self._stretches = stretches
        self._offsets = {place: array("q") for place in stretches}

    def add(self, place: Place, offset: int) -> None:
        stretch = self._stretches.get(place)
        if stretch is None or not stretch.start <= offset < stretch.end:
            return
        known = self._offsets[place]
        at = bisect_left(known, offset)
        if at == len(known) or known[at] != offset:
            known.insert(at, offset)

    def has(self, place: Place, offset: int) -> bool:
        known = self._offsets.get(place, array("q"))
        at = bisect_left(known, offset)
        return at < len(known) and known[at] == offset


class Quarantining:
    """Use it with ``with``. Opens nothing before there is something to put away."""

    def __init__(self, kafka: KafkaConnection, topic: str, stretches: Mapping[Place, Stretch]) -> None:
        self._kafka = kafka
        self._topic = topic
        self._known = Origins(stretches)
        self._read_to: dict[Place, int] = {}
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is not None:
            self._producer.flush(FLUSH_SECONDS)

    def put(self, ledger: psycopg.Connection, refused: Sequence[Refused]) -> None:
        """Return when all of them are there. Raises ReplayError."""
        if not refused:
            return
        with in_turn(ledger, "replay quarantine", self._topic):
            self._read_on()
            self._store([entry for entry in refused if not self._known.has(entry.place, entry.message.offset() or 0)])
            for entry in refused:
                self._known.add(entry.place, entry.message.offset() or 0)

    def _read_on(self) -> None:
        groups = KafkaGroups(self._kafka)
        bounds = groups.bounds(groups.partitions([self._topic]))
        stretches = {
            place: Stretch(max(bound.start, self._read_to.get(place, 0)), bound.stable_end)
            for place, bound in bounds.items()
        }
        with TopicScan(self._kafka, READER_GROUP, stretches) as scan:
            for batch in scan.batches():
                for _, message in batch.messages:
                    origin = _origin_of(message)
                    if origin is not None:
                        self._known.add(*origin)
                self._read_to |= batch.reached

    def _store(self, entries: Sequence[Refused]) -> None:
        """All of them, each as whole as the topic takes it."""
        waiting = [(_where(entry), _records(entry)) for entry in entries]
        while waiting:
            answers: dict[int, KafkaError | None] = {}
            for number, (where, records) in enumerate(waiting):
                record = next(records, None)
                if record is None:
                    raise ReplayError(f"{self._topic} takes no record about {where}: raise its max.message.bytes")
                self._produce(record, partial(_keep, answers, number))
            if self._opened().flush(FLUSH_SECONDS) or len(answers) < len(waiting):
                raise ReplayError(f"{self._topic} did not take {len(waiting)} messages within {FLUSH_SECONDS:g} s")
            for number, error in answers.items():
                if error is not None and error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise ReplayError(
                        f"{self._topic} does not take {waiting[number][0]}: {' '.join(error.str().split())}"
                    )
            waiting = [waiting[number] for number, error in sorted(answers.items()) if error is not None]

    def _produce(self, record: QuarantineRecord, answered: Callable[..., None]) -> None:
        while True:
            try:
                self._opened().produce(
                    self._topic,
                    key=record.key,
                    value=record.value,
                    headers=[(name, content) for name, content in record.headers],
                    on_delivery=answered,
                )
                return
            except BufferError:  # it holds as much as it may
                self._opened().poll(1.0)

    def _opened(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._kafka.librdkafka(),
                    "enable.idempotence": True,
                    # The broker's limit decides, not this client's.
                    "message.max.bytes": 1_000_000_000,
                    "queue.buffering.max.kbytes": QUEUED_KIB,
                    "log_level": 0,
                }
            )
        return self._producer


def _where(entry: Refused) -> str:
    return f"{entry.place.topic}/{entry.place.partition}/{entry.message.offset()}"


def _keep(answers: dict[int, KafkaError | None], number: int, error: KafkaError | None, _: Message) -> None:
    answers[number] = error


def _records(entry: Refused) -> Iterator[QuarantineRecord]:
    return quarantine_records(_where(entry), entry.message.key(), entry.message.value(), entry.headers, entry.reason)


def _origin_of(message: Message) -> tuple[Place, int] | None:
    try:
        content = dict(headers_of(message)).get(ORIGIN_HEADER)
        if content is None:
            return None
        topic, partition, offset = content.decode().rsplit("/", 2)
        return Place(topic, int(partition)), int(offset)
    except ValueError:
        return None  # not one of ours
