"""Whether the database answers, asked every second, so that a question about readiness waits for nothing."""

from __future__ import annotations

import asyncio

import psycopg
import structlog

from pipeline.ledger.pool import Pool

PROBE_SECONDS = 1.0
ANSWER_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class DatabaseProbe:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._trouble = "the database has not answered yet"

    def ready(self) -> tuple[bool, str]:
        return (False, self._trouble) if self._trouble else (True, "the database answers")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS), self._pool.connection() as connection:
                    await connection.execute("select from outrider.ledger_setting")
                trouble = ""
            except TimeoutError:
                trouble = f"the database does not answer within {ANSWER_SECONDS:g} s"
            except psycopg.Error as error:
                trouble = " ".join(str(error).split())
            if trouble != self._trouble:
                _log.info("readiness changed", trouble=trouble or None)
            self._trouble = trouble
            await asyncio.sleep(PROBE_SECONDS)
