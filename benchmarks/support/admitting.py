"""An application that admits events, one in a transaction: `python -m benchmarks.support.admitting`, told by JSON on stdin.

It prints one JSON object: `seconds`, `cpu_seconds`, and with `is_timed` the monotonic clock after each commit, `commits`, by
delivery id.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import psycopg
import uvloop

PAYLOAD: Final = b'{"asset":42,"state":"processed","padding":"' + b"x" * 355 + b'"}'


@dataclass(frozen=True, slots=True)
class Load:
    """What to admit. ``events_per_second`` 0 is as fast as ``connections`` can; destinations are taken in turn."""

    dsn: str
    prefix: str
    events: int
    destinations: tuple[str, ...]
    connections: int = 4
    events_per_second: float = 0.0
    is_timed: bool = False

    def encoded(self) -> bytes:
        """For stdin: it holds a password."""
        return json.dumps(asdict(self)).encode()


async def admit(load: Load) -> dict[str, object]:
    commits: dict[str, float] = {}
    numbers = iter(range(load.events))
    begun, used = time.monotonic(), time.process_time()

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(load.dsn, autocommit=True) as connection:
            for number in numbers:
                if load.events_per_second:
                    await asyncio.sleep(max(0.0, begun + number / load.events_per_second - time.monotonic()))
                destination = load.destinations[number % len(load.destinations)]
                cursor = await connection.execute(
                    "select delivery_id from outrider.admit(%s, 'media.processed', %b, 'application/json', %s)",
                    (f"{load.prefix}-{number}", PAYLOAD, [destination]),
                )
                now = time.monotonic()
                row = await cursor.fetchone()
                if row is None:
                    raise SystemExit(f"{destination} got no delivery")
                if load.is_timed:
                    commits[row[0]] = now

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.connections):
            tasks.create_task(work())
    return {
        "seconds": time.monotonic() - begun,
        "cpu_seconds": time.process_time() - used,
        "commits": commits,
    }


if __name__ == "__main__":
    told = json.load(sys.stdin)
    found = uvloop.run(admit(Load(**{**told, "destinations": tuple(told["destinations"])})))
    # With PYTHONUNBUFFERED, print loses what a pipe does not take at once.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(json.dumps(found).encode())
