"""Which offset of a partition may be committed, when its messages are done in any order.

One tracker serves one assignment of one partition; the next assignment gets a new one. Each offset passes through
fetched, admitted and done:

- fetched: it has left the broker. From here on nothing after it may be committed, even if it is dropped on the way to its reader.
- admitted: its reader has it. Only the first time counts, so that a message that is read again is not handled twice.
- done: settled or parked.

The offset to commit is the lowest that is not done. Offsets without a message (transaction markers, aborted records) are
never fetched; they are passed over by the fetch position, which counts as soon as nothing before it is open.
"""

from __future__ import annotations

from collections.abc import Iterable


class CompletionTracker:
    """Bookkeeping of one partition within one generation of its group."""

    __slots__ = ("_fetched_to", "_open", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        # Open offset -> whether it was admitted. Keys are in ascending order, because they are only ever
        # appended above `_fetched_to`.
        self._open: dict[int, bool] = {}
        self._fetched_to = 0

    def fetched(self, offsets: Iterable[int], position: int) -> None:
        """Messages have arrived, in ascending order, and the next fetch begins at ``position``.

        Offsets that were fetched before (the reader was sent back) stay as they are.
        """
        for offset in offsets:
            if offset >= self._fetched_to:
                self._open[offset] = False
                self._fetched_to = offset + 1
        self._fetched_to = max(self._fetched_to, position)

    def admit(self, offset: int) -> bool:
        """Whether the reader shall take this message: it is open, and was not taken before."""
        if self._open.get(offset) is not False:
            return False
        self._open[offset] = True
        return True

    def done(self, offset: int) -> bool:
        """Close an offset; False where it was not open."""
        return self._open.pop(offset, None) is not None

    @property
    def fetched_to(self) -> int:
        """Where the fetch behind all that were noted begins. 0 before anything was fetched."""
        return self._fetched_to

    @property
    def unsettled(self) -> int:
        """Messages that are not done."""
        return len(self._open)

    @property
    def next_offset(self) -> int:
        """The offset to commit: everything below it is done. 0 before anything was fetched."""
        return next(iter(self._open), self._fetched_to)
