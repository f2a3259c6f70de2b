"""The path that a source replaces: a scan that a cron job would run, here again and again until it is ended.

    python -m tests.support.cron_scan DSN

It admits each due asset in the transaction that marks it, and leaves alone the shards that are live in the source.
"""

from __future__ import annotations

import sys
import time

import psycopg

PAUSE_SECONDS = 0.05
PAGE_ROWS = 20
DUE = """
select a.asset_id, convert_to('{"asset":' || a.asset_id || '}', 'UTF8') as payload
from public.asset a
where a.announced_at is null
  and a.processed_at <= clock_timestamp()
  and outrider.shard_of(a.publisher, 4) <> all ((select outrider.live_shards('assets'))::integer[])
order by a.processed_at
limit %s
for update skip locked
"""


def scan(connection: psycopg.Connection) -> int:
    """Admit a page; how many."""
    with connection.transaction():
        rows = connection.execute(DUE, (PAGE_ROWS,)).fetchall()
        for asset_id, payload in rows:
            connection.execute(
                "update public.asset set announced_at = clock_timestamp() where asset_id = %s", (asset_id,)
            )
            connection.execute(
                "select outrider.admit(%s, 'asset.processed', %s, destinations => array['acme'])",
                (f"asset-{asset_id}", payload),
            )
    return len(rows)


def main() -> None:
    with psycopg.connect(sys.argv[1], autocommit=True, application_name="cron scan") as connection:
        while True:
            if not scan(connection):
                time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
