"""Column values: both forms of a value give the same text, at the ends of the ranges too."""

from __future__ import annotations

import json
import math
import struct
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.postgres.values import BinaryUnsupportedError, ValueFormError, codec_of

BOOL, BYTEA, INT8, INT4, TEXT, FLOAT8, DATE, TIMESTAMPTZ, NUMERIC, UUID = (
    16, 17, 20, 23, 25, 701, 1082, 1184, 1700, 2950,
)  # fmt: skip
JSON, JSONB, TEXT_ARRAY, INT4_ARRAY = 114, 3802, 1009, 1007
UNKNOWN = 999_999


@pytest.mark.parametrize(
    ("oid", "binary", "text", "expected"),
    [
        (BOOL, b"\x01", "t", b"true"),
        (BOOL, b"\x00", "f", b"false"),
        (INT4, struct.pack(">i", -(2**31)), "-2147483648", b"-2147483648"),
        (INT8, struct.pack(">q", 2**63 - 1), "9223372036854775807", b"9223372036854775807"),
        (TEXT, "größer".encode(), "größer", "größer".encode()),
        (BYTEA, b"\x00\xff", "\\x00ff", b"AP8="),
        (FLOAT8, struct.pack(">d", 0.1), "0.1", b"0.1"),
        (FLOAT8, struct.pack(">d", math.inf), "Infinity", b"Infinity"),
        (700, struct.pack(">f", 0.1), "0.1", b"0.1"),
        (JSON, b'{"a": 1.10}', '{"a": 1.10}', b'{"a": 1.10}'),
        (JSONB, b'\x01{"a": 1}', '{"a": 1}', b'{"a": 1}'),
        (DATE, struct.pack(">i", 0), "2000-01-01", b"2000-01-01"),
        (DATE, struct.pack(">i", 2**31 - 1), "infinity", b"infinity"),
        # The ends of PostgreSQL's ranges.
        (DATE, struct.pack(">i", -2_451_545), "4714-11-24 BC", b"-4713-11-24"),
        (TIMESTAMPTZ, struct.pack(">q", 0), "2000-01-01 00:00:00+00", b"2000-01-01T00:00:00.000000Z"),
        (TIMESTAMPTZ, struct.pack(">q", -1), "1999-12-31 23:59:59.999999+00", b"1999-12-31T23:59:59.999999Z"),
        (TIMESTAMPTZ, struct.pack(">q", -(2**63)), "-infinity", b"-infinity"),
        (
            TIMESTAMPTZ,
            struct.pack(">q", 9_223_371_331_200_000_000 - 1),
            "294276-12-31 23:59:59.999999+00",
            b"+294276-12-31T23:59:59.999999Z",
        ),
        (
            TIMESTAMPTZ,
            struct.pack(">q", -211_813_488_000_000_000),
            "4714-11-24 00:00:00+00 BC",
            b"-4713-11-24T00:00:00.000000Z",
        ),
        (NUMERIC, struct.pack(">HhHH3H", 3, 1, 0x4000, 3, 1, 2345, 6780), "-12345.678", b"-12345.678"),
        (NUMERIC, struct.pack(">HhHH1H", 1, -2, 0, 6, 1200), "0.000012", b"0.000012"),
        (NUMERIC, struct.pack(">HhHH", 0, 0, 0, 2), "0.00", b"0.00"),
        (NUMERIC, struct.pack(">HhHH", 0, 0, 0xC000, 0), "NaN", b"NaN"),
        (TEXT_ARRAY, struct.pack(">iiI", 0, 0, TEXT), "{}", b"[]"),
        (
            TEXT_ARRAY,
            struct.pack(">iiIii", 1, 1, TEXT, 3, 1) + struct.pack(">i", 4) + b'a"\\,' + struct.pack(">ii", -1, 4) + b"NULL",
            '{"a\\"\\\\,",NULL,"NULL"}',
            rb'["a\"\\,",null,"NULL"]',
        ),
        (
            INT4_ARRAY,
            struct.pack(">iiIiiii", 2, 0, INT4, 2, 1, 2, 1) + b"".join(struct.pack(">ii", 4, n) for n in (1, 2, 3, 4)),
            "{{1,2},{3,4}}",
            b"[[1,2],[3,4]]",
        ),
    ],
)  # fmt: skip
def test_binary_and_text_form_give_the_same(oid: int, binary: bytes, text: str, expected: bytes) -> None:
    codec = codec_of(oid)
    assert codec.text(binary) == expected
    assert codec.text(text) == expected
    assert codec.json(binary) == codec.json(text)
    json.loads(codec.json(binary))


@given(st.uuids())
def test_uuids(value: uuid.UUID) -> None:
    assert codec_of(UUID).text(value.bytes) == codec_of(UUID).text(str(value)) == str(value).encode()


@given(st.datetimes())
def test_moments(value: datetime) -> None:
    moment_us = (value - datetime(2000, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001  # both are UTC
    text = codec_of(TIMESTAMPTZ).text(struct.pack(">q", moment_us)).decode()
    assert datetime.fromisoformat(text) == value.replace(tzinfo=UTC)
    shown = f"{value:%H:%M:%S}" + (f".{value.microsecond:06d}".rstrip("0") if value.microsecond else "")
    assert codec_of(TIMESTAMPTZ).text(f"{value.date().isoformat()} {shown}+00").decode() == text


@given(st.binary(max_size=50))
def test_bytea_as_a_body_is_itself(value: bytes) -> None:
    assert codec_of(BYTEA).body(value) == codec_of(BYTEA).body("\\x" + value.hex()) == value


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))))
def test_text_arrays_keep_every_element(items: list[str | None]) -> None:
    def quoted(item: str) -> str:
        escaped = item.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    text = "{" + ",".join("NULL" if item is None else quoted(item) for item in items) + "}"
    assert json.loads(codec_of(TEXT_ARRAY).json(text)) == items


@given(st.floats())
def test_numbers_that_json_lacks_become_strings(value: float) -> None:
    read = json.loads(codec_of(FLOAT8).json(struct.pack(">d", value)))
    assert isinstance(read, str) != math.isfinite(value)
    assert float(read) == value or math.isnan(value)


def test_numeric_is_a_string_in_json_so_that_no_digit_is_lost() -> None:
    digits = "123456789012345678901234567890.10"
    assert json.loads(codec_of(NUMERIC).json(digits)) == digits


def test_an_unknown_type_is_text_in_its_text_form_only() -> None:
    assert codec_of(UNKNOWN).json("(1,2)") == b'"(1,2)"'
    with pytest.raises(BinaryUnsupportedError):
        codec_of(UNKNOWN).text(b"\0\0\0\1")


@given(st.sampled_from([BOOL, BYTEA, INT8, INT4, FLOAT8, DATE, TIMESTAMPTZ, NUMERIC, UUID, JSONB, TEXT_ARRAY, INT4_ARRAY]),
       st.one_of(st.binary(max_size=40), st.text(max_size=20)))  # fmt: skip
def test_malformed_values_are_errors_of_one_kind(oid: int, value: bytes | str) -> None:
    with suppress(ValueFormError, BinaryUnsupportedError):
        assert isinstance(codec_of(oid).text(value), bytes)


# Of each type whose length or content tells where it ends.
WHOLE_VALUES = {
    BOOL: b"\1",
    INT4: b"\0\0\0\7",
    INT8: bytes(8),
    FLOAT8: struct.pack(">d", 0.1),
    700: struct.pack(">f", 0.1),
    DATE: bytes(4),
    1114: bytes(8),
    TIMESTAMPTZ: bytes(8),
    NUMERIC: struct.pack(">HhHH3H", 3, 1, 0, 3, 1, 2345, 6780),
    UUID: bytes(16),
    INT4_ARRAY: struct.pack(">iiIiiii", 2, 1, INT4, 2, 1, 2, 1) + struct.pack(">iiiiiii", 4, 1, -1, 4, 3, 4, 4),
    TEXT_ARRAY: struct.pack(">iiIii", 1, 0, TEXT, 2, 1) + struct.pack(">i", 3) + b"abc" + struct.pack(">i", 0),
}


@pytest.mark.parametrize("oid", WHOLE_VALUES)
def test_every_proper_prefix_of_a_binary_value_is_an_error(oid: int) -> None:
    whole = WHOLE_VALUES[oid]
    assert codec_of(oid).text(whole)
    for size in range(len(whole)):
        with pytest.raises(ValueFormError):
            codec_of(oid).text(whole[:size])


@pytest.mark.parametrize("oid", WHOLE_VALUES)
def test_bytes_left_over_behind_a_binary_value_are_an_error(oid: int) -> None:
    with pytest.raises(ValueFormError):
        codec_of(oid).text(WHOLE_VALUES[oid] + b"\0")
