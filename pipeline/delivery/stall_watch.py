"""Whether a worker still gets on: messages that wait while none comes in and none is done, for long, say that it does not."""

from __future__ import annotations

STALL_SECONDS = 30.0


class StallWatch:
    """Remembers the last movement. ``now`` is any clock in seconds that only goes forward."""

    def __init__(self, now: float) -> None:
        self._moved_at = now

    def moved(self, now: float) -> None:
        """A message was admitted or is done."""
        self._moved_at = now

    def look(self, unsettled: int, now: float) -> None:
        """Call it often: while nothing waits, nothing can stall, so that a wait begins with its first message."""
        if unsettled == 0:
            self._moved_at = now

    def is_stalled(self, unsettled: int, now: float) -> bool:
        """Whether messages wait, and nothing has moved for STALL_SECONDS."""
        return unsettled > 0 and now - self._moved_at >= STALL_SECONDS
