"""Records that the client cannot parse are handed on as damaged ones, instead of ending the fetch of all partitions.

Kafka does not look into what a producer calls a header, so a name may be no UTF-8; the client then raises from the
middle of a batch, loses what it took from other partitions in the same fetch, and meets the same record after every
restart. Here the rest of such a batch is read record by record (each says its own length): whole ones stay as they are,
and a damaged one has its key, its value and one header, UNREADABLE, with what was wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from aiokafka.consumer import fetcher
from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import _DefaultRecordBatchPy as PlainBatch
from aiokafka.record.memory_records import MemoryRecords

# Not the compiled one: that reads beyond the end of a damaged batch, and the process dies of it.
from aiokafka.record.util import decode_varint_py as decode_varint

UNREADABLE = "outrider_unreadable"
# Of a batch: its base offset (8 bytes), then the length of what follows the length (4 bytes).
LENGTH_AT, FOLLOWS_AT = 8, 12
HEADERS_SINCE_FORMAT = 2


class DamagedRecord(NamedTuple):
    """What the client's own record has, of one that it cannot parse."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


class ReadableRecords:
    """Stands in for the client's reader of a fetched run of batches."""

    def __init__(self, fetched: bytes) -> None:
        self._records = MemoryRecords(fetched)
        self._fetched = fetched
        self._position = 0

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        batch: Any = self._records.next_batch()
        begin = self._position
        (length,) = struct.unpack_from(">i", self._fetched, begin + LENGTH_AT)
        self._position = begin + FOLLOWS_AT + length
        if batch.magic < HEADERS_SINCE_FORMAT:
            return batch
        return ReadableBatch(batch, memoryview(self._fetched)[begin : self._position])


class ReadableBatch:
    """A batch as the client reads it, until it cannot; from there on record by record."""

    def __init__(self, batch: Any, content: memoryview) -> None:
        self._batch = batch
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        count = 0
        try:
            for record in self._batch:
                yield record
                count += 1
        except UnsupportedCodecError:
            raise  # says nothing of the record, but of this installation
        except Exception as error:
            yield from islice(read_one_by_one(self._content, error), count, None)


def read_one_by_one(content: memoryview, error: Exception) -> Iterator[Any]:
    """Every record of a batch, damaged or not. Where a record does not even say where it ends, one stands for the rest."""
    batch: Any = PlainBatch(content)
    rest = DamagedRecord(
        # The last offset of the batch, so that it is not taken for one that was read before.
        offset=batch.next_offset - 1,
        timestamp=batch.max_timestamp,
        timestamp_type=batch.timestamp_type,
        key=None,
        value=None,
        headers=[(UNREADABLE, f"the rest of a batch, up to this offset, cannot be read: {error!r}".encode())],
    )
    try:
        iter(batch)  # decompresses
    except Exception:
        yield rest
        return
    for _ in range(batch._num_records):
        begin = batch._pos
        try:
            record = batch._read_msg(decode_varint)
        except Exception as problem:
            try:
                record, batch._pos = _damaged(batch, begin, problem)
            except (IndexError, ValueError):
                yield rest
                return
        yield record


def _damaged(batch: Any, begin: int, problem: Exception) -> tuple[DamagedRecord, int]:
    """The record that begins there, and where the next one does. Raises where its frame cannot be read."""
    buffer = batch._buffer
    length, position = decode_varint(buffer, begin)
    end = position + length
    if length <= 0 or end > len(buffer):
        raise ValueError("a record that ends outside its batch")
    position += 1  # attributes
    timestamp_delta, position = decode_varint(buffer, position)
    offset_delta, position = decode_varint(buffer, position)
    if not 0 <= offset_delta <= batch.last_offset_delta:
        raise ValueError("a record outside the offsets of its batch")
    key, position = _bytes(buffer, position, end)
    value, _ = _bytes(buffer, position, end)
    record = DamagedRecord(
        offset=batch.base_offset + offset_delta,
        timestamp=max(0, batch.first_timestamp + timestamp_delta),
        timestamp_type=batch.timestamp_type,
        key=key,
        value=value,
        headers=[(UNREADABLE, repr(problem).encode(errors="replace"))],
    )
    return record, end


def _bytes(buffer: bytearray, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(buffer, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise ValueError("a part that ends outside its record")
    return bytes(buffer[position : position + length]), position + length


def read_what_is_unreadable() -> None:
    """Make the client's consumers in this process use it."""
    fetcher.MemoryRecords = ReadableRecords
