"""Records of the topics: a value or a named error, whatever is on the wire."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codecs import Attempt, Dispatch, RecordError, decode_attempt, decode_dispatch

LEAST: dict[str, bytes | None] = {"id": b"m-1", "delivery_id": b"d-1", "dispatch_seq": b"3"}


def decode(
    key: bytes | None = b"acme", value: bytes | None = b"body", **headers: bytes | None
) -> Dispatch | RecordError:
    return decode_dispatch(key, value, list({**LEAST, **headers}.items()))


def test_a_record_with_the_least_headers_is_a_dispatch() -> None:
    assert decode() == Dispatch(
        destination_id="acme", message_id="m-1", delivery_id="d-1", dispatch_seq=3, payload=b"body"
    )


def test_every_header_is_read() -> None:
    dispatch = decode(
        event_id="e-ü".encode(),
        event_type=b"media.processed",
        content_type=b"application/json",
        reason=b"admitted",
        headers=b'{"x-tenant": "7"}',
        unknown=b"\xff",
    )
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.event_id, dispatch.event_type, dispatch.content_type) == (
        "e-ü",
        "media.processed",
        "application/json",
    )
    assert (dispatch.reason, dispatch.headers) == ("admitted", {"x-tenant": "7"})


def test_null_headers_are_missing_ones_and_the_payload_may_be_null() -> None:
    dispatch = decode(value=None, event_id=None, headers=None)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.payload, dispatch.event_id, dispatch.headers) == (None, None, {})


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (decode(key=None), "key"),
        (decode(key=b""), "key"),
        (decode(key=b"\xff"), "key"),
        (decode(key=b"k" * 1025), "key"),
        (decode(value=b"v" * (4 * 1024 * 1024 + 1)), "value"),
        (decode(id=None), "id"),
        (decode(delivery_id=b""), "delivery_id"),
        (decode(dispatch_seq=b"0"), "dispatch_seq"),
        (decode(dispatch_seq=b"-1"), "dispatch_seq"),
        (decode(dispatch_seq=b"1.0"), "dispatch_seq"),
        (decode(dispatch_seq=b"2147483648"), "dispatch_seq"),
        (decode(dispatch_seq="٣".encode()), "dispatch_seq"),
        (decode(event_type=b"\xc3"), "event_type"),
        (decode(headers=b'["a"]'), "headers"),
        (decode(headers=b'{"a": 1}'), "headers"),
        (decode_dispatch(b"acme", b"", None), "id"),
    ],
)
def test_a_broken_record_is_an_error_that_names_the_field(record: Dispatch | RecordError, field: str) -> None:
    assert isinstance(record, RecordError)
    assert record.field == field
    assert str(record).startswith(f"{field}: ")


@given(
    st.none() | st.binary(max_size=30),
    st.none() | st.binary(max_size=30),
    st.lists(st.tuples(st.sampled_from([*LEAST, "headers", "event_id", "x"]), st.none() | st.binary(max_size=12))),
)
def test_decoding_is_total(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    assert isinstance(decode_dispatch(key, value, headers), Dispatch | RecordError)
    assert isinstance(decode_attempt(value), Attempt | RecordError)


ATTEMPT = {
    "attempt_id": 2**53 + 1,
    "recorded_at": "2026-01-01T00:00:00.000000Z",
    "delivery_id": "d",
    "event_id": "e",
    "event_type": "t",
    "destination_id": "acme",
    "attempt": 1,
    "dispatch_seq": 1,
    "worker_id": "w",
    "result": "retry",
    "outcome": "timeout",
    "status": None,
    "ambiguous": True,
    "error": None,
    "response_excerpt": "AP8=",
    "retry_after_seconds": 1.5,
    "next_attempt_at": None,
    "key_ids": ["k1"],
    "payload_sha256": "AA==",
    "started_at": "2026-01-01T00:00:00.000000Z",
    "duration_seconds": 0.25,
}


def test_an_attempt_is_read_with_its_bytes_and_whole_numbers() -> None:
    attempt = decode_attempt(json.dumps({**ATTEMPT, "added_later": 1}).encode())
    assert isinstance(attempt, Attempt)
    assert (attempt.attempt_id, attempt.response_excerpt, attempt.payload_sha256) == (2**53 + 1, b"\x00\xff", b"\x00")


@pytest.mark.parametrize("value", [None, b"", b"[]", b"\xff", json.dumps({**ATTEMPT, "attempt": "1"}).encode()])
def test_a_broken_attempt_is_an_error_of_its_value(value: bytes | None) -> None:
    attempt = decode_attempt(value)
    assert isinstance(attempt, RecordError)
    assert attempt.field == "value"
