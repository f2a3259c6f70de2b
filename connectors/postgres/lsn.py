"""Log sequence numbers: byte positions in PostgreSQL's write-ahead log, as integers."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """``"16/B374D848"`` as an integer. Raises ValueError for anything else."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r}")
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """The inverse of :func:`parse_lsn`, as PostgreSQL prints it."""
    if not 0 <= lsn < 1 << 64:
        raise ValueError(f"an LSN has 64 bits: {lsn}")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
