"""What makes the reconciler look: its timer, and NOTIFY. Neither says what there is to find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psycopg
import structlog

from pipeline.reconcile.backoff import backoff_seconds

CHANNEL = "outrider_wakeup"

_log = structlog.get_logger(__name__)


class WakeUps:
    """Any number of calls between two looks are one wake-up."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._caller = ""

    def call(self, caller: str) -> None:
        self._caller = caller
        self._called.set()

    async def wait(self, seconds: float) -> str:
        """Who called last since the wait before, or ``timer`` after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            return "timer"
        self._called.clear()
        return self._caller


async def listen(
    conninfo: str,
    call: Callable[[str, str], None],
    *,
    channels: Sequence[str] = (CHANNEL,),
    application: str = "outrider reconciler wake-ups",
) -> None:
    """Pass each NOTIFY on, as channel and payload, until cancelled.

    A lost connection is opened again; the timer covers the time between.
    """
    failures = 0
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(
                conninfo, autocommit=True, application_name=application, keepalives_idle=30
            ) as connection:
                for channel in channels:
                    await connection.execute(f"listen {channel}".encode())
                if failures:
                    _log.info("wake-ups are back", channels=channels)
                failures = 0
                async for notify in connection.notifies():
                    call(notify.channel, notify.payload)
        except psycopg.OperationalError as error:
            failures += 1
            if failures == 1:  # the passes tell of a database that stays away
                _log.warning("wake-ups lost, timer goes on", channels=channels, error=" ".join(str(error).split()))
        await asyncio.sleep(backoff_seconds(failures))
