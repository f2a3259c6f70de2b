"""A message becomes a record that a topic and its client take, however large or empty its parts are."""

from __future__ import annotations

import pytest

from topics.quarantine_records import SMALL_BYTES_MAX, QuarantineRecord, quarantine_records

ORIGIN = "t/1/42"
LARGE = SMALL_BYTES_MAX + 1


def records(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> list[QuarantineRecord]:
    return list(quarantine_records(ORIGIN, key, value, headers, "why"))


def header(record: QuarantineRecord, name: str) -> bytes | None:
    return dict(record.headers).get(name)


def test_the_first_record_is_the_whole_message() -> None:
    first = records(b"k", b"v" * LARGE, [("h", b"1"), ("h", None)])[0]
    assert (first.key, first.value) == (b"k", b"v" * LARGE)
    assert list(first.headers) == [
        ("h", b"1"),
        ("h", None),
        ("quarantine_reason", b"why"),
        ("quarantine_origin", b"t/1/42"),
    ]


def test_a_message_without_key_and_value_has_a_value_that_is_not_null() -> None:
    for record in records(None, None, []):
        assert record.value == b""
        assert header(record, "quarantine_left_out") == b"value: null"


@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * LARGE])
@pytest.mark.parametrize("value", [None, b"", b"v", b"v" * LARGE])
@pytest.mark.parametrize("headers", [[], [("h", None)], [("h" * LARGE, b"")], [("h", b"x" * LARGE)]])
def test_each_record_is_smaller_than_the_one_before_and_the_last_is_the_reason_alone(key, value, headers) -> None:
    found = records(key, value, headers)
    sizes = [
        len(r.key or b"") + len(r.value) + sum(len(n) + len(c or b"") for n, c in r.headers if n[0] == "h")
        for r in found
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(found) <= 4
    assert all(header(r, "quarantine_reason") == b"why" for r in found)
    assert (found[-1].key, found[-1].value) == (None, b"")
    is_less = bool(key or value or headers) or value is None
    added = ["quarantine_reason", "quarantine_origin", *(["quarantine_left_out"] if is_less else [])]
    assert [name for name, _ in found[-1].headers] == added


def test_a_large_key_costs_neither_value_nor_headers() -> None:
    second = records(b"k" * LARGE, b"v", [("h", b"1")])[1]
    assert (second.key, second.value, header(second, "h")) == (None, b"v", b"1")
    assert header(second, "quarantine_left_out") == f"key: {LARGE} bytes".encode()


def test_a_reason_that_is_not_text_is_no_obstacle() -> None:
    (first, *_) = quarantine_records(ORIGIN, b"k", b"v", [], "bad \ud800" + "x" * 10_000)
    assert (header(first, "quarantine_reason") or b"").startswith(b"bad ?x")
