"""Connections to the ledger: a bounded pool, and what each session sets."""

from __future__ import annotations

import asyncio

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

Connection = AsyncConnection[TupleRow]
Pool = AsyncConnectionPool[Connection]

STATEMENT_TIMEOUT_SECONDS = 30
POOL_WAIT_SECONDS = 10.0
# Between two statements of a transaction there is nothing to wait for; a client that does so hangs.
IDLE_IN_TRANSACTION_SECONDS = 5


class _CancellablePool(AsyncConnectionPool[Connection]):
    """A task that is cancelled while it waits for a connection ends, on Python 3.11 as well.

    Up to 3.11 ``asyncio.wait_for``, by which the pool waits, loses a cancellation that comes in the turn in which the
    connection does (https://github.com/python/cpython/issues/86296). A task that runs until it is cancelled would go on for
    ever, and who waits for its end with it.
    """

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109 - as in the class above
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        connection = await super().getconn(timeout)
        if task and task.cancelling() > cancellations:
            await self.putconn(connection)
            raise asyncio.CancelledError
        return connection


def open_pool(conninfo: str, size: int, application: str, *, plans_once: bool = False) -> Pool:
    """A pool of at most ``size`` connections; open it with ``async with``.

    A statement that runs longer than STATEMENT_TIMEOUT_SECONDS is cancelled by the server, and so is a transaction
    that is left idle for IDLE_IN_TRANSACTION_SECONDS: a worker that hangs must not hold a destination's row lock.

    Every statement of the ledger is written for an index. A plan that is cached while the tables are nearly empty would
    scan them instead, and be kept while they fill: on 20 000 rows such a claim took twelve times as long. So sequential
    scans are off.

    With ``plans_once`` a session plans each statement once, for arrays of any length: planning a claim anew takes longer
    than running it. Only for statements whose best plan no parameter changes.
    """

    async def configure(connection: Connection) -> None:
        await connection.execute(
            f"set statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'; "
            f"set idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_SECONDS}s'; "
            "set enable_seqscan = off; "
            f"set plan_cache_mode = {'force_generic_plan' if plans_once else 'auto'}; "
            "set timezone = 'UTC'"
        )

    return _CancellablePool(
        conninfo,
        connection_class=AsyncConnection[TupleRow],
        kwargs={"application_name": f"outrider {application}", "autocommit": True},
        min_size=1,
        max_size=size,
        open=False,
        timeout=POOL_WAIT_SECONDS,
        reconnect_timeout=60,
        configure=configure,
        check=AsyncConnectionPool.check_connection,
        name=application,
    )
