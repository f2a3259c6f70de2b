"""Of a batch with damage in it, every record comes out: the whole ones as they were, the damaged ones marked."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delivery.unreadable import UNREADABLE, ReadableRecords, read_one_by_one
from tests.support.damaged_records import NotText, batch

GOOD = [("id", b"1"), ("none", None)]
BAD = [("id", b"1"), (NotText("x"), b"y")]
GZIP = 1


def read(content: bytes) -> list[Any]:
    records, found = ReadableRecords(content), []
    while records.has_next():
        found += [(r.offset, r.key, r.value, list(r.headers)) for r in records.next_batch()]
    assert records.size_in_bytes() == len(content)
    return found


def test_the_client_itself_cannot_read_such_a_batch() -> None:
    with pytest.raises(UnicodeDecodeError):
        list(MemoryRecords(batch((b"k", b"v", BAD))).next_batch())


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.sampled_from([0, GZIP]))
def test_whole_records_stay_whole_and_damaged_ones_are_marked(is_bad, codec) -> None:
    records = [(None if n % 3 == 0 else b"k%d" % n, b"v%d" % n, BAD if bad else GOOD) for n, bad in enumerate(is_bad)]
    found = read(batch(*records, codec=codec) * 2)
    assert [(key, value) for _, key, value, _ in found] == [(key, value) for key, value, _ in records] * 2
    assert [offset for offset, *_ in found] == list(range(len(records))) * 2
    for bad, (*_, headers) in zip(is_bad * 2, found, strict=True):
        assert ([name for name, _ in headers] == [UNREADABLE]) if bad else (headers == GOOD)


def test_of_a_batch_that_cannot_be_decompressed_one_record_stands_for_all() -> None:
    content = bytearray(batch(*[(b"k", b"v" * 100, GOOD)] * 5, codec=GZIP))
    content[70:90] = b"\0" * 20
    ((offset, key, value, headers),) = read(bytes(content))
    assert (offset, key, value) == (4, None, None)
    assert [name for name, _ in headers] == [UNREADABLE]


@given(st.data())
def test_whatever_is_in_a_batch_reading_it_one_by_one_ends_and_does_not_raise(data) -> None:
    content = bytearray(batch(*[(b"key", b"value", GOOD)] * 3, (b"k", b"v", BAD)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(61, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert 1 <= len(list(read_one_by_one(memoryview(content), ValueError()))) <= 4
