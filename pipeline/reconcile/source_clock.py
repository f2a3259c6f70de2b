"""When a source's own clocks make a pass begin: an interval, a cron expression. Pure.

A clock says that somebody should look, never what there is, nor that anything ran. So ticks that were missed are one tick:
what became due meanwhile is found by one look.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

CRON_FIELDS = 5


def check_cron(expression: str, time_zone: str) -> None:
    """Raises ValueError, in one line, for what is no cron expression, never comes, or is in no time zone."""
    if len(expression.split()) != CRON_FIELDS:
        raise ValueError(f"cron {expression!r} has not five fields: minute, hour, day of month, month, day of week")
    if next_tick(expression, time_zone, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise ValueError(f"cron {expression!r} never comes")


def next_tick(expression: str, time_zone: str, after: datetime) -> datetime | None:
    """The first tick after a moment, in UTC; None where none comes for decades. Raises ValueError.

    Summer time as in Debian's cron: what is set for a time that is skipped comes right after the change, and what is set for
    one that comes twice comes once; what has * or */n as its minute or hour comes as often as the clock shows it.
    """
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"time_zone {time_zone!r} is unknown: write a name such as Europe/Berlin") from None
    try:
        ticks = CronSim(expression, after.astimezone(zone))
    except CronSimError as error:
        raise ValueError(f"cron {expression!r}: {str(error).lower()}") from None
    for tick in ticks:
        moment = tick.astimezone(UTC)
        if moment > after:  # in the hour that comes twice the first of the two may lie behind
            return moment
    return None


def cron_is_due(expression: str, time_zone: str, since: datetime, now: datetime) -> bool:
    """Whether a tick came after ``since``, the last time that one was heeded, and up to ``now``."""
    tick = next_tick(expression, time_zone, since)
    return tick is not None and tick <= now


def interval_is_due(seconds: float, since: datetime | None, now: datetime) -> bool:
    """``since``: when it made a pass begin last; None: never."""
    return since is None or now - since >= timedelta(seconds=seconds)
