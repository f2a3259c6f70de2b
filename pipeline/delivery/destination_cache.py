"""What a worker knows of the destinations that have lanes: read at once for a new lane, and again when it has grown old."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence

import psycopg
import structlog

from pipeline.core.sealing import Vault
from pipeline.delivery.lanes import Limits, ParkReason
from pipeline.ledger.destinations import Destination, load_destinations
from pipeline.ledger.pool import Pool

log = structlog.get_logger(__name__)

PAGE = 500
DATABASE_RETRY_SECONDS = 1.0


class DestinationCache:
    """Run ``serve``. ``known`` is called for each destination that was read, ``unknown`` for one that is not there."""

    def __init__(
        self,
        pool: Pool,
        vault: Vault,
        *,
        max_age_seconds: float,
        known: Callable[[Destination], None],
        unknown: Callable[[str], None],
        in_use: Callable[[], Sequence[str]],
        wanted: Callable[[], Sequence[str]],
        read: Callable[[], None],
    ) -> None:
        """``in_use``: all that are kept. ``wanted``: those of them not known yet. ``read`` is called after each reading."""
        self._pool = pool
        self._vault = vault
        self._max_age_seconds = max_age_seconds
        self._known = known
        self._unknown = unknown
        self._in_use = in_use
        self._wanted = wanted
        self._read = read
        self._asked = asyncio.Event()
        self._destinations: dict[str, Destination] = {}

    def get(self, destination_id: str) -> Destination | None:
        return self._destinations.get(destination_id)

    def ask(self) -> None:
        """Somebody wants one that is not known."""
        self._asked.set()

    def forget(self, destination_id: str) -> None:
        self._destinations.pop(destination_id, None)

    async def serve(self) -> None:
        """Run until cancelled."""
        now = asyncio.get_running_loop().time
        refresh_at = now() + self._max_age_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(refresh_at):
                    await self._asked.wait()
            self._asked.clear()
            if now() >= refresh_at:
                wanted = self._in_use()
                refresh_at = now() + self._max_age_seconds
            else:
                wanted = self._wanted()
            for first in range(0, len(wanted), PAGE):
                await self._read_page(wanted[first : first + PAGE])

    async def _read_page(self, destination_ids: Sequence[str]) -> None:
        try:
            found = await load_destinations(self._pool, destination_ids, self._vault)
        except psycopg.Error as error:
            log.warning("destinations not read, trying again", error=" ".join(str(error).split()))
            await asyncio.sleep(DATABASE_RETRY_SECONDS)
            self.ask()
            return
        for destination_id in destination_ids:
            destination = found.get(destination_id)
            if destination is None:
                self._unknown(destination_id)
                continue
            _tell_problem(self._destinations.get(destination_id), destination)
            self._destinations[destination_id] = destination
            self._known(destination)
        self._read()


def _tell_problem(before: Destination | None, now: Destination) -> None:
    """Once, and not with each reading."""
    if now.problem is not None and (before is None or before.problem != now.problem):
        log.error("destination cannot be sent to", destination_id=now.destination_id, problem=now.problem)


def limits_of(destination: Destination) -> Limits:
    """Those in force: a destination that was slowed down has less of each than its settings say."""
    closed = None
    if not destination.enabled:
        closed = ParkReason.DISABLED
    elif destination.is_paused:
        closed = ParkReason.PAUSED
    elif not destination.secrets:
        closed = ParkReason.NO_SECRET
    share = destination.rate_share
    return Limits(
        destination.start_rate_per_second * share,
        max(1, math.floor(destination.burst * share)),
        destination.concurrency,
        closed,
    )
