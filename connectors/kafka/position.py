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

from connectors.errors import ConfigurationError
from connectors.kafka.log_reader import LogReader, end_offset

# The newest positions are at the end. This many records are tried before the whole topic is read.
_TAIL_RECORDS: Final = 10_000
# The start of a connector waits for the answer to its last fetch, which has nothing to bring.
_FETCH_WAIT_MS: Final = 50


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
    deadline = time.monotonic() + deadline_seconds
    with LogReader(kafka, topic, while_waiting, fetch_wait_ms=_FETCH_WAIT_MS) as reader:
        end = end_offset(kafka, topic, while_waiting)
        tail = max(0, end - _TAIL_RECORDS)
        found = _last_value(reader, key, range(tail, end), deadline)
        if found is None and tail > 0:
            found = _last_value(reader, key, range(end), deadline)
    try:
        return None if found is None else decode_position(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"the position in topic {topic} cannot be read ({error}): who wrote it?") from None


def _last_value(reader: LogReader, key: bytes, offsets: range, deadline: float) -> bytes | None:
    """Of a topic that holds other slots' positions too."""
    found: bytes | None = None
    for message in reader.read(offsets, deadline):
        if message.key() == key:
            found = message.value()
    return found
