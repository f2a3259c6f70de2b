"""One timer of an event loop that is set again and again, and goes off at the earliest time it was set to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SOONEST_SECONDS = 0.001


class Alarm:
    """Calls ``goes_off`` once for all times set since it last did. Of one event loop, by whose clock times are."""

    def __init__(self, goes_off: Callable[[], None]) -> None:
        self._goes_off = goes_off
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        # Kept here: uvloop's handle does not tell its time where that rounds to now.
        self._moment = 0.0

    def set(self, moment: float) -> None:
        """Go off at that time, or a moment from now where it has passed; an earlier time that was set stays."""
        moment = max(moment, self._loop.time() + SOONEST_SECONDS)
        if self._handle is not None:
            if self._moment <= moment:
                return
            self._handle.cancel()
        self._moment = moment
        self._handle = self._loop.call_at(self._moment, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._goes_off()
