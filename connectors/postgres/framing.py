"""The envelope of logical replication inside COPY BOTH: what the server frames, what the client answers."""

from __future__ import annotations

import struct
from typing import Final

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
XLOG_HEADER_BYTES: Final = 25  # 'w', start and end LSN, clock; the pgoutput message follows

_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")
_EPOCH_UNIX_SECONDS = 946_684_800  # 2000-01-01 UTC


def decode_keepalive(data: bytes) -> tuple[int, int, bool]:
    """(end of WAL that the server has sent, its clock, whether it wants an answer now). Raises ValueError.

    The clock is in microseconds since 2000.
    """
    if len(data) != _KEEPALIVE.size:
        raise ValueError(f"a keepalive has {_KEEPALIVE.size} bytes, got {len(data)}")
    _, wal_end, clock_us, reply = _KEEPALIVE.unpack(data)
    return wal_end, clock_us, bool(reply)


def encode_status(confirmed_lsn: int, *, unix_seconds: float, ask_reply: bool) -> bytes:
    """A standby status update: everything before ``confirmed_lsn`` is safe and may be forgotten."""
    clock_us = int((unix_seconds - _EPOCH_UNIX_SECONDS) * 1_000_000)
    return _STATUS.pack(b"r", confirmed_lsn, confirmed_lsn, confirmed_lsn, clock_us, ask_reply)
