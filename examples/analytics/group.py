"""The consumer group: attempts into the file, and how far it has come into Kafka, for operators to see and to move.

What counts is the position in the file, written in the transaction of the rows. The group's offsets follow it:

- behind it, because of a crash between the two or because an operator has moved the group back: the messages are read
  again, and written again as they are;
- ahead of it, because the file is older or an operator has moved the group forward: reading goes on where the file ends,
  so that no minute is short.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from examples.analytics.store import AttemptRow, Defect, Store
from topics.codecs import RecordError, decode_attempt

BATCH_MESSAGES: Final = 2_000
WAIT_SECONDS: Final = 0.5
GATHER_SECONDS: Final = 0.1
"""From the first message of a batch on; a batch is one transaction, and costs more than a message."""
KAFKA_SECONDS: Final = 15.0
QUEUED_KILOBYTES: Final = 16_384
FORGET_EVERY: Final = timedelta(hours=1)
PROBLEM_LENGTH_MAX: Final = 500
INTEGER_END: Final = 2**31
BIGINT_END: Final = 2**63
# Another member reads on from the last commit, or we do after we have joined again.
_GENERATION_IS_OVER: Final = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS}
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step has read: rows for the file, and where each partition stands behind them."""

    attempts: list[AttemptRow]
    defects: list[Defect]
    positions: dict[int, int]


class AnalyticsGroup:
    """The group's only member, because the file has only one writer. Use ``step`` until it is to end, then ``close``."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        topic: str,
        group: str,
        store: Store,
        keep: timedelta,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._topic = topic
        self._store = store
        self._keep = keep
        self._forgot_at: datetime | None = None
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._assigned: set[int] = set()
        self._ended: set[int] = set()
        self._is_closing = False
        self._failure: KafkaException | None = None
        self.messages = 0
        """Read since the start."""
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "queued.max.messages.kbytes": QUEUED_KILOBYTES,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    @property
    def is_at_end(self) -> bool:
        """Whether all that was there has been read."""
        return bool(self._assigned) and self._ended >= self._assigned

    def step(self) -> None:
        """Read a batch, write it, and tell Kafka. Raises KafkaException for what waiting does not mend."""
        messages = self._consumer.consume(1, WAIT_SECONDS)
        if messages:
            messages += self._consumer.consume(BATCH_MESSAGES - 1, GATHER_SECONDS)
        if self._failure is not None:
            raise self._failure
        batch = self._read(messages)
        if not batch.positions:
            return
        self._store.write(self._topic, batch.attempts, batch.defects, batch.positions)
        self._forget_old()
        self._commit(batch.positions)

    def close(self) -> None:
        """Leave the group, so that its offsets can be moved at once."""
        self._is_closing = True
        self._consumer.close()

    def _read(self, messages: list[Message]) -> Batch:
        batch = Batch([], [], {})
        for message in messages:
            partition, offset = message.partition() or 0, message.offset() or 0
            error = message.error()
            if error is None:
                self._ended.discard(partition)
                self.messages += 1
                try:
                    batch.attempts.append(_row(message.value()))
                except (ValueError, OverflowError) as problem:
                    batch.defects.append(Defect(partition, offset, str(problem)[:PROBLEM_LENGTH_MAX]))
                batch.positions[partition] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(partition)
            elif not error.retriable():
                raise KafkaException(error)
        return batch

    def _commit(self, positions: Mapping[int, int]) -> None:
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in positions.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _GENERATION_IS_OVER:
                raise

    def _forget_old(self) -> None:
        now = _utc(datetime.now(UTC))
        if self._forgot_at is None or now - self._forgot_at > FORGET_EVERY:
            self._store.forget_before(now - self._keep)
            self._forgot_at = now

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Called from within the client, which loses what is raised here."""
        if self._is_closing:
            return
        try:
            self._assign(consumer, partitions)
        except KafkaException as failure:
            self._failure = failure

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = {place.partition for place in partitions}
        self._ended = set()
        for committed in consumer.committed(partitions, timeout=KAFKA_SECONDS):
            first, end = consumer.get_watermark_offsets(committed, timeout=KAFKA_SECONDS)
            committed.offset = self._start(committed.partition, committed.offset, first, end)
            next(place for place in partitions if place.partition == committed.partition).offset = committed.offset
        consumer.assign(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned, self._ended = set(), set()

    def _start(self, partition: int, committed: int, first: int, end: int) -> int:
        """Where to begin in a partition whose log has the offsets from ``first`` to below ``end``."""
        stored = self._store.position(self._topic, partition)
        if stored is None:
            return first
        start = min(stored, committed) if committed >= 0 else stored
        where = f"{self._topic}/{partition}"
        if start < stored:
            self._say(f"{where}: the group stands at {start}, and the file at {stored}: reading these messages again")
        elif committed > stored:
            self._say(f"{where}: the group stands at {committed}, and the file at {stored}: reading from there")
        if start > end:
            self._say(
                f"{where}: the file is at {stored}, and the log ends at {end}: it is another log, read from its beginning"
            )
            return first
        if start < first:
            self._say(
                f"{where}: messages {start} to {first - 1} are not in the log any more; what the file has of them stays"
            )
            return first
        return start


def _row(value: bytes | str | None) -> AttemptRow:
    """Raises ValueError or OverflowError for a message that is no attempt; other programs may write to the topic."""
    attempt = decode_attempt(value)
    if isinstance(attempt, RecordError):
        raise attempt
    if not (abs(attempt.attempt_id) < BIGINT_END and abs(attempt.attempt) < INTEGER_END):
        raise ValueError("value: holds a number that no column takes")
    return AttemptRow(
        attempt_id=attempt.attempt_id,
        recorded_at=_utc(datetime.fromisoformat(attempt.recorded_at)),
        delivery_id=attempt.delivery_id,
        attempt=attempt.attempt,
        destination_id=attempt.destination_id,
        event_type=attempt.event_type,
        result=attempt.result,
        started_at=_utc(datetime.fromisoformat(attempt.started_at)),
        duration_seconds=attempt.duration_seconds,
    )


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)
