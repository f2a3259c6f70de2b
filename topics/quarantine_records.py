"""A message that nobody can read, as a record of the quarantine topic: unchanged, with the reason and its place beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Headers = Sequence[tuple[str, bytes | None]]
ORIGIN_HEADER: Final = "quarantine_origin"
REASON_HEADER: Final = "quarantine_reason"
REASON_LENGTH_MAX: Final = 500
SMALL_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """A record as it is sent. The value is never null: a record needs a key or a value, and not each has a key."""

    key: bytes | None
    value: bytes
    headers: Headers


def quarantine_records(
    where: str, key: bytes | None, value: bytes | None, headers: Headers, reason: str
) -> Iterator[QuarantineRecord]:
    """Records for one message, from the whole of it to nothing but the reason and where it lies (topic/partition/offset).

    What a record leaves out is named, with its size, in its header ``quarantine_left_out``; a null value, which
    becomes an empty one, is named there too.
    """
    added: list[tuple[str, bytes | None]] = [
        (REASON_HEADER, reason[:REASON_LENGTH_MAX].encode(errors="replace")),
        (ORIGIN_HEADER, where.encode()),
    ]
    key_bytes, value_bytes = len(key or b""), len(value or b"")
    headers_bytes = sum(len(name.encode(errors="replace")) + len(content or b"") for name, content in headers)
    previous = None
    # The largest key, headers and value that each record keeps.
    for small_max, value_max in ((None, None), (SMALL_BYTES_MAX, None), (SMALL_BYTES_MAX, SMALL_BYTES_MAX), (-1, -1)):
        keeps_key = small_max is None or key_bytes <= small_max
        keeps_headers = small_max is None or headers_bytes <= small_max
        keeps_value = value_max is None or value_bytes <= value_max
        if (keeps_key, keeps_headers, keeps_value) == previous:
            continue
        previous = (keeps_key, keeps_headers, keeps_value)
        left_out = [
            f"{name}: {size} bytes"
            for name, size, is_kept in (
                ("key", key_bytes, keeps_key),
                ("headers", headers_bytes, keeps_headers),
                ("value", value_bytes, keeps_value),
            )
            if size and not is_kept
        ]
        if value is None:
            left_out.append("value: null")
        yield QuarantineRecord(
            key=key if keeps_key else None,
            value=value if keeps_value and value is not None else b"",
            headers=[
                *(headers if keeps_headers else ()),
                *added,
                *([("quarantine_left_out", ", ".join(left_out).encode())] if left_out else ()),
            ],
        )
