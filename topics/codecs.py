"""Records of the topics as Python values. Decoding is total: a value, or an error that names what is wrong.

Readers must not trust what they read: other programs may write to a topic, by mistake or while replaying, so
every field is bounded and checked before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from topics.contract_wire import AttemptOutcome, AttemptResult, Moment
from topics.declarations import MESSAGE_BYTES_MAX

IDENTITY_BYTES_MAX: Final = 1_024
HEADERS_BYTES_MAX: Final = 256 * 1_024
DISPATCH_SEQ_MAX: Final = 2**31 - 1

HeaderPairs = Iterable[tuple[str, bytes | str | None]]


class RecordError(ValueError):
    """A record breaks its topic's contract. ``field`` names the part: "key", "value" or a header."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One handing of a delivery to the workers.

    ``message_id``, ``delivery_id`` and ``dispatch_seq`` are always there. The others may be missing where
    another connector feeds the topic: the ledger knows them.
    """

    destination_id: str
    message_id: str
    delivery_id: str
    dispatch_seq: int
    payload: bytes | None
    event_id: str | None = None
    event_type: str | None = None
    content_type: str | None = None
    reason: str | None = None
    headers: dict[str, str] = {}


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that ended, as a row of the attempt log. Bytes are base64 in JSON, moments RFC 3339 in UTC."""

    attempt_id: int
    recorded_at: Moment
    delivery_id: str
    event_id: str
    event_type: str
    destination_id: str
    attempt: int
    dispatch_seq: int
    worker_id: str
    result: AttemptResult
    outcome: AttemptOutcome
    status: int | None
    ambiguous: bool
    error: str | None
    response_excerpt: bytes | None
    retry_after_seconds: float | None
    next_attempt_at: Moment | None
    key_ids: list[str]
    payload_sha256: bytes
    started_at: Moment
    duration_seconds: float
    response_headers: dict[str, str] | None = None
    """A bounded part of the answer's header, names in lower case. These five are missing in older records."""
    dns_seconds: float | None = None
    connect_seconds: float | None = None
    tls_seconds: float | None = None
    first_byte_seconds: float | None = None


def decode_dispatch(
    key: bytes | str | None, value: bytes | str | None, headers: HeaderPairs | None
) -> Dispatch | RecordError:
    """A record of the dispatch topic. Of a header that is repeated, the last counts."""
    try:
        return _dispatch(key, value, headers)
    except RecordError as error:
        return error


def dispatch_identity(headers: HeaderPairs | None) -> tuple[str, int] | None:
    """Of a record that may be broken otherwise: which dispatch it says it is (delivery_id, dispatch_seq), or None."""
    given = dict(headers or ())
    try:
        delivery_id = _text("delivery_id", given.get("delivery_id") or b"", IDENTITY_BYTES_MAX)
        dispatch_seq = _dispatch_seq(_text("dispatch_seq", given.get("dispatch_seq") or b"", IDENTITY_BYTES_MAX))
    except RecordError:
        return None
    return (delivery_id, dispatch_seq) if delivery_id and "\0" not in delivery_id else None


def decode_attempt(value: bytes | str | None) -> Attempt | RecordError:
    """The value of a record of the attempts topic. Fields that are not known are left out."""
    if value is None:
        return RecordError("value", "is null")
    if len(value) > MESSAGE_BYTES_MAX:
        return RecordError("value", f"is longer than {MESSAGE_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(value, type=Attempt)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RecordError("value", str(error))


def _dispatch(key: bytes | str | None, value: bytes | str | None, headers: HeaderPairs | None) -> Dispatch:
    given = dict(headers or ())

    def optional(name: str, bytes_max: int = IDENTITY_BYTES_MAX) -> str | None:
        content = given.get(name)
        return None if content is None else _text(name, content, bytes_max)

    def required(name: str) -> str:
        content = optional(name)
        if not content:
            raise RecordError(name, "is missing" if content is None else "is empty")
        return content

    payload = value.encode() if isinstance(value, str) else value
    if payload is not None and len(payload) > MESSAGE_BYTES_MAX:
        raise RecordError("value", f"is longer than {MESSAGE_BYTES_MAX} bytes")
    if not key:
        raise RecordError("key", "is missing" if key is None else "is empty")
    return Dispatch(
        destination_id=_text("key", key, IDENTITY_BYTES_MAX),
        message_id=required("id"),
        delivery_id=required("delivery_id"),
        dispatch_seq=_dispatch_seq(required("dispatch_seq")),
        payload=payload,
        event_id=optional("event_id"),
        event_type=optional("event_type"),
        content_type=optional("content_type"),
        reason=optional("reason"),
        headers=_header_object(optional("headers", HEADERS_BYTES_MAX)),
    )


def _text(field: str, content: bytes | str, bytes_max: int) -> str:
    if len(content) > bytes_max:
        raise RecordError(field, f"is longer than {bytes_max} bytes")
    try:
        return content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError:
        raise RecordError(field, "is not UTF-8") from None


def _dispatch_seq(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(DISPATCH_SEQ_MAX)):
        raise RecordError("dispatch_seq", f"is not a decimal number from 1 to {DISPATCH_SEQ_MAX}")
    number = int(text)
    if not 1 <= number <= DISPATCH_SEQ_MAX:
        raise RecordError("dispatch_seq", f"is not a decimal number from 1 to {DISPATCH_SEQ_MAX}")
    return number


def _header_object(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str] | None) or {}
    except msgspec.DecodeError as error:
        raise RecordError("headers", f"is not a JSON object of strings: {error}") from None
