"""How far a connector has published, kept in a compacted topic by the transactions that publish.

A position means: every row of source transactions that commit before ``lsn`` is published, and of the
transaction whose commit record begins at ``lsn``, the first ``row`` changes. Between transactions
``lsn`` is the end of the last one's commit record and ``row`` is 0. Counting changes is needed because
all rows of one COPY can share one LSN, and because a large transaction is published in parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public, but not declared so

from connectors.errors import ConfigurationError, KafkaUnavailableError, MissingTopicError
from connectors.kafka.client import (
    ADMIN_TIMEOUT_SECONDS,
    ClientErrors,
    admin_result,
    kafka_error,
)

# The newest positions are at the end. This many records are tried before the whole topic is read.
_TAIL_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.5


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. ``phase`` is "snapshot" while rows are being published that the stream does not bring.

    ``as_of_us`` is a time by the database's clock, in microseconds since 2000: when the last transaction that is
    published whole was committed, or when the server said later that it has sent all that it has; a position of
    phase "snapshot" carries on that of the streaming position before it. ``publication`` is the fingerprint of what
    is streamed from.
    """

    system_id: str
    timeline: int
    database: str
    slot: str
    lsn: int
    row: int
    phase: Literal["snapshot", "streaming"] = "streaming"
    as_of_us: int | None = None
    publication: str | None = None


def position_key(database: str, slot: str) -> bytes:
    """The key under which a slot's position is kept. A slot belongs to one database."""
    return msgspec.json.encode({"database": database, "slot": slot})


def encode_position(position: Position) -> bytes:
    return msgspec.json.encode(position)


def decode_position(value: bytes) -> Position:
    """Raises msgspec.DecodeError for anything that encode_position cannot have written."""
    return msgspec.json.decode(value, type=Position)


def read_position(
    kafka: Mapping[str, Any],
    topic: str,
    key: bytes,
    *,
    deadline_seconds: float,
    while_waiting: Callable[[], None],
) -> Position | None:
    """The last committed position under ``key``, or None where there is none, or none any more.

    Call it after the producer was fenced, so that no transaction of an older connector can still end.
    Raises MissingTopicError, ConfigurationError for a value that is no position, or TransientError where the
    end is not reached in time.
    """
    end = end_offset(kafka, topic, while_waiting)
    reader = _PositionReader(kafka, topic, end, time.monotonic() + deadline_seconds, while_waiting)
    tail = max(0, end - _TAIL_RECORDS)
    found = reader.last_value(key, tail) if end > 0 else None
    if found is None and tail > 0:
        found = reader.last_value(key, OFFSET_BEGINNING)
    try:
        return None if found is None else decode_position(found)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"the position in topic {topic} cannot be read ({error}): who wrote it?") from None


def end_offset(kafka: Mapping[str, Any], topic: str, while_waiting: Callable[[], None]) -> int:
    """One past the last record, including those of transactions that are still open."""
    partition = TopicPartition(topic, 0)
    errors = ClientErrors()
    admin = AdminClient(errors.configure(kafka))
    futures = admin.list_offsets(
        {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=ADMIN_TIMEOUT_SECONDS,
    )
    try:
        return int(admin_result(futures[partition], while_waiting).offset)
    except KafkaException as exception:
        error = kafka_error(exception)
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise MissingTopicError(topic) from None
        raise errors.explain(f"tell the end of topic {topic}", error) from None
    except TimeoutError:
        raise errors.explain(f"tell the end of topic {topic}", None) from None


class _PositionReader:
    """Reads the only partition of a positions topic up to an end known before."""

    def __init__(
        self, kafka: Mapping[str, Any], topic: str, end: int, deadline: float, while_waiting: Callable[[], None]
    ) -> None:
        self._errors = ClientErrors()
        self._configuration = self._errors.configure(
            kafka,
            **{
                # Needed by the client, never used: offsets are neither stored nor committed.
                "group.id": f"{topic}.reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            },
        )
        self._topic = topic
        self._end = end
        self._deadline = deadline
        self._while_waiting = while_waiting

    def last_value(self, key: bytes, start: int) -> bytes | None:
        consumer = Consumer(self._configuration)
        found: bytes | None = None
        try:
            consumer.assign([TopicPartition(self._topic, 0, start)])
            while time.monotonic() < self._deadline:
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    self._while_waiting()
                    continue
                error = message.error()
                if error is None:
                    if message.key() == key:
                        found = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    # read_committed ends where the first open transaction begins. Another slot's may be open
                    # below our own last position, so reading goes on until the true end.
                    offset = message.offset()
                    if offset is not None and offset >= self._end:
                        return found
                elif not error.retriable():
                    raise self._errors.explain(f"give topic {self._topic}", error)
        finally:
            consumer.close()
        raise KafkaUnavailableError(f"topic {self._topic} could not be read to its end (does a transaction hang?)")
