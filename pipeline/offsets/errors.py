"""What can go wrong while offsets are looked at or moved; each message is for the person who asked."""

from __future__ import annotations

from collections.abc import Sequence


class OffsetsError(Exception):
    """It cannot be done as asked; one line."""


class RefusedError(OffsetsError):
    """Nothing was changed, for these reasons."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)
