"""Whatever lies in a topic becomes a row that the table takes."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.records import (
    DEFECT_CHARACTERS_MAX,
    IDENTITY_CHARACTERS_MAX,
    INTEGER_MAX,
    Message,
    read_attempt,
    read_dispatch,
)
from pipeline.ledger.audit import AuditRecord

DISPATCH_HEADERS: dict[str, bytes | str | None] = {"id": b"m1", "delivery_id": b"dlv_1", "dispatch_seq": b"3"}
ATTEMPT: dict[str, Any] = {
    "attempt_id": 1,
    "recorded_at": "2026-01-01T00:00:00.000000Z",
    "delivery_id": "dlv_1",
    "event_id": "e",
    "event_type": "t",
    "destination_id": "acme",
    "attempt": 2,
    "dispatch_seq": 3,
    "worker_id": "w",
    "result": "retry",
    "outcome": "server_error",
    "status": 500,
    "ambiguous": True,
    "error": None,
    "response_excerpt": None,
    "retry_after_seconds": None,
    "next_attempt_at": None,
    "key_ids": ["k"],
    "payload_sha256": base64.b64encode(b"\x01" * 32).decode(),
    "started_at": "2026-01-01T00:00:00.000000Z",
    "duration_seconds": 0.5,
}


def message(key: bytes | None, value: bytes | None, headers: Any = (), timestamp_ms: int = 1_000) -> Message:
    return Message(topic="t", partition=1, offset=7, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers)


def attempt(**changes: Any) -> Message:
    return message(b"acme", json.dumps({**ATTEMPT, **changes}).encode())


def dispatch(**changes: bytes | str | None) -> Message:
    return message(b"acme", b"body", {**DISPATCH_HEADERS, **changes}.items())


def test_dispatch_is_recorded_with_the_hash_of_its_bytes() -> None:
    assert read_dispatch(dispatch()) == AuditRecord(
        topic="t",
        partition=1,
        log_offset=7,
        logged_at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        delivery_id="dlv_1",
        destination_id="acme",
        dispatch_seq=3,
        body_sha256=hashlib.sha256(b"body").digest(),
    )


def test_attempt_is_recorded_with_its_result_and_the_hash_that_it_sent() -> None:
    assert read_attempt(attempt()) == AuditRecord(
        topic="t",
        partition=1,
        log_offset=7,
        logged_at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        delivery_id="dlv_1",
        destination_id="acme",
        event_id="e",
        dispatch_seq=3,
        attempt=2,
        result="retry",
        outcome="server_error",
        status=500,
        ambiguous=True,
        worker_id="w",
        key_ids=["k"],
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_us=500_000,
        body_sha256=b"\x01" * 32,
    )


@pytest.mark.parametrize(
    ("record", "defect"),
    [
        (read_dispatch(message(None, b"body", DISPATCH_HEADERS.items())), "key"),
        (read_dispatch(message(b"acme", b"body")), "id"),
        (read_dispatch(dispatch(dispatch_seq=b"x")), "dispatch_seq"),
        (read_dispatch(dispatch(delivery_id=b"\xff")), "delivery_id"),
        (read_dispatch(dispatch(delivery_id=b"nul\0")), "delivery_id"),
        (read_attempt(message(b"acme", None)), "value"),
        (read_attempt(message(b"acme", b"{")), "value"),
        (read_attempt(message(b"other", json.dumps(ATTEMPT).encode())), "key"),
        (read_attempt(message(None, json.dumps(ATTEMPT).encode())), "key"),
        (read_attempt(attempt(delivery_id="nul\0")), "delivery_id"),
        (read_attempt(attempt(delivery_id="x" * (IDENTITY_CHARACTERS_MAX + 1))), "delivery_id"),
        (read_attempt(attempt(result="\0")), "result"),
        (read_attempt(attempt(attempt=INTEGER_MAX + 1)), "attempt"),
        (read_attempt(attempt(dispatch_seq=-1)), "dispatch_seq"),
        (read_attempt(attempt(status=-1)), "status"),
        (read_attempt(attempt(worker_id="\0")), "worker_id"),
        (read_attempt(attempt(key_ids=["k"] * 101)), "key_ids"),
        (read_attempt(attempt(key_ids=["\0"])), "key_ids"),
        (read_attempt(attempt(started_at="yesterday")), "started_at"),
        (read_attempt(attempt(started_at="2026-01-01T00:00:00")), "started_at"),
        (read_attempt(attempt(started_at="0001-01-01T00:00:00+14:00")), "started_at"),
        (read_attempt(attempt(duration_seconds=-1)), "duration_seconds"),
        (read_attempt(attempt(duration_seconds=1e300)), "duration_seconds"),
    ],
)
def test_what_cannot_be_understood_keeps_its_place_and_says_why(record: AuditRecord, defect: str) -> None:
    assert record.defect is not None
    assert record.defect.startswith(f"{defect}:")
    assert (record.topic, record.partition, record.log_offset) == ("t", 1, 7)
    assert record.delivery_id is None


def test_broken_dispatch_keeps_the_hash_of_what_it_carried() -> None:
    assert read_dispatch(message(None, b"body")).body_sha256 == hashlib.sha256(b"body").digest()


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 2**63 - 1])
def test_absurd_times_of_the_log_are_bounded(timestamp_ms: int) -> None:
    record = read_dispatch(message(b"acme", b"", DISPATCH_HEADERS.items(), timestamp_ms))
    assert record.defect is None
    assert 1970 <= record.logged_at.year <= 9999


BYTES = st.none() | st.binary(max_size=200) | st.text(max_size=50).map(str.encode)
HEADER_NAMES = st.sampled_from(["id", "delivery_id", "dispatch_seq", "event_id", "headers", "other"])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists)


@given(key=BYTES, value=BYTES, headers=st.lists(st.tuples(HEADER_NAMES, BYTES), max_size=8))
def test_any_dispatch_record_becomes_a_row(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    check_storable(read_dispatch(message(key, value, headers)))


@given(changes=st.dictionaries(st.sampled_from(sorted(ATTEMPT)), JSON, max_size=3))
def test_any_attempt_record_becomes_a_row(changes: dict[str, Any]) -> None:
    check_storable(read_attempt(attempt(**changes)))


@given(value=BYTES)
def test_any_bytes_as_an_attempt_become_a_row(value: bytes | None) -> None:
    check_storable(read_attempt(message(b"acme", value)))


def check_storable(record: AuditRecord) -> None:
    for text in (record.delivery_id, record.destination_id, record.result):
        assert text is None or ("\0" not in text and len(text) <= IDENTITY_CHARACTERS_MAX and text.encode())
    for number in (record.dispatch_seq, record.attempt):
        assert number is None or 0 <= number <= INTEGER_MAX
    if record.defect is not None:
        assert record.defect.isprintable()
        assert len(record.defect) <= DEFECT_CHARACTERS_MAX
    else:
        assert record.delivery_id is not None
