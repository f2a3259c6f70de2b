"""Where histories part, and which positions a server still knows."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.postgres.timeline import is_in_history, parse_history

HISTORY = """\
# a comment
1\t0/5000060\tno recovery target specified

2\t1/A0 \tbefore 2026-01-01 00:00:00+00
"""


def test_a_history_file_is_read_line_by_line() -> None:
    assert parse_history(HISTORY) == {1: 0x5000060, 2: 1 << 32 | 0xA0}
    assert parse_history("") == {}
    assert parse_history("one\t0/1\n3\tnowhere\n4") == {}


@pytest.mark.parametrize(
    ("lsn", "timeline", "expected"),
    [
        (0x1000, 3, True),
        (0x2000, 3, True),
        (0x2001, 3, False),  # beyond the end of the WAL
        (0x900, 2, True),
        (0x901, 2, False),  # published from a history that ended there
        (0x500, 1, True),
        (0x1, 0, False),  # no ancestor
    ],
)
def test_a_position_belongs_to_the_history_up_to_where_its_timeline_was_left(
    lsn: int, timeline: int, expected: bool
) -> None:
    server: dict[str, Any] = {"server_timeline": 3, "server_lsn": 0x2000, "switches": {1: 0x500, 2: 0x900}}
    assert is_in_history(lsn, timeline, **server) is expected
