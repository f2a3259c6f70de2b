"""What a receiver saw: one line per request in an append-only file.

A line is written to the file, unbuffered, before the request is answered. So the file outlives a SIGKILL of the
receiver, others may read it while it grows, and the receiver itself keeps only a count per delivery.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pipeline.demo.signatures import Verdict

READ_BYTES_MAX = 8 * 1024 * 1024


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Without a valid signature nothing but the bytes that came is known to be the sender's."""

    destination_id: str
    webhook_id: str
    received_at: float
    """Seconds of CLOCK_REALTIME, when the request had been read."""
    body_sha256: str
    signature: Verdict
    idempotency_key_fits: bool
    """Idempotency-Key is equal to webhook-id."""
    asset: str | None
    """The event's own header `x-demo-asset`: the business key, which knows nothing of Outrider's identities."""
    applies: bool
    """The receiver took the event over, whatever it answered."""
    is_effect: bool
    """First time that it took over this webhook-id: the logical effect."""
    status: int | None
    """What it was about to answer; None: it dropped the connection or hung."""


class ReceiptFile:
    """The writing end: opened for appending, created with mode 0600."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._encoder = msgspec.json.Encoder()

    def append(self, receipt: Receipt) -> None:
        """Hand one line to the kernel, in one write."""
        os.write(self._descriptor, self._encoder.encode(receipt) + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReceiptTail:
    """The reading end: each `read` gives what was added since the one before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decoder = msgspec.json.Decoder(Receipt)

    def read(self) -> Iterator[Receipt]:
        """New receipts in order of arrival; none while the file does not exist. A half-written line stays for later."""
        while chunk := self._read_lines():
            for line in chunk.splitlines():
                yield self._decoder.decode(line)

    def _read_lines(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(READ_BYTES_MAX)
        except FileNotFoundError:
            return b""
        complete = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete
