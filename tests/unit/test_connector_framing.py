"""The envelope of replication messages, and LSNs."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.postgres.framing import decode_keepalive, encode_status
from connectors.postgres.lsn import format_lsn, parse_lsn

lsns = st.integers(0, 2**64 - 1)


@given(lsns)
def test_an_lsn_is_read_as_it_is_printed(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_lsns_look_as_postgresql_prints_them() -> None:
    assert format_lsn(0x16_B374D848) == "16/B374D848"
    assert parse_lsn("0/0") == 0


@pytest.mark.parametrize("text", ["", "16", "16/", "/1", "1/123456789", "g/1", "1/1 ", "-1/1"])
def test_anything_else_is_no_lsn(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)


@given(lsns, st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())
def test_a_keepalive_tells_the_end_of_wal_the_clock_and_whether_to_answer(lsn: int, clock: int, reply: bool) -> None:
    data = struct.pack(">cQqB", b"k", lsn, clock, reply)
    assert decode_keepalive(data) == (lsn, clock, reply)
    for size in range(len(data)):
        with pytest.raises(ValueError, match="a keepalive has 18 bytes"):
            decode_keepalive(data[:size])


@given(lsns, st.booleans())
def test_a_status_says_the_same_lsn_is_written_flushed_and_applied(lsn: int, ask: bool) -> None:
    status = encode_status(lsn, unix_seconds=946_684_800.5, ask_reply=ask)
    assert struct.unpack(">cQQQqB", status) == (b"r", lsn, lsn, lsn, 500_000, ask)
