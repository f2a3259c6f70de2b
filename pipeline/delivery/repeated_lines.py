"""Log lines of libraries that repeat themselves while a service is away: one in a while, with the number left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

INTERVAL_SECONDS = 10.0
TEMPLATES_MAX = 1000


class OnceInAWhile(logging.Filter):
    """Lets a message template pass at most once in ``INTERVAL_SECONDS``, and says how many it held back before."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, str(record.msg)), time.monotonic()
        passed_at, held_back = self._passed.get(key, (float("-inf"), 0))
        if now - passed_at < INTERVAL_SECONDS:
            self._passed[key] = passed_at, held_back + 1
            return False
        if len(self._passed) >= TEMPLATES_MAX:
            self._passed.clear()
        self._passed[key] = now, 0
        if held_back:
            record.msg = f"{record.getMessage()} ({held_back} more like it left out)"
            record.args = ()
        return True


def quieten(loggers: Iterable[str]) -> None:
    """Filter these loggers. Each is named, because a logger's filters do not see what its children log."""
    once_in_a_while = OnceInAWhile()
    for name in loggers:
        logging.getLogger(name).addFilter(once_in_a_while)
