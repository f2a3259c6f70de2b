"""An application that changes its own data and admits an event, in one transaction.

Its login needs `outrider_application` and rights on its own table, nothing else:

    create table asset (asset_id bigint primary key, state text not null);
    create role media_app login password '...' in role outrider_application;
    grant select, insert, update on asset to media_app;

    DATABASE_URL=postgresql://media_app:...@127.0.0.1/outrider python examples/quickstart.py 42
"""

from __future__ import annotations

import json
import os
import sys

import psycopg

from pipeline.admission import AdmittedDelivery, admit_sync


def process(connection: psycopg.Connection, asset_id: int) -> list[AdmittedDelivery]:
    """Mark the asset as processed, and tell every subscriber of media.processed."""
    with connection.transaction():
        connection.execute(
            "insert into asset (asset_id, state) values (%s, 'processed') "
            "on conflict (asset_id) do update set state = excluded.state",
            (asset_id,),
        )
        # Both are there after this block, or neither is. To run it again is harmless: the id is the same.
        return admit_sync(
            connection,
            event_id=f"asset-{asset_id}-processed",
            event_type="media.processed",
            payload=json.dumps({"asset": asset_id, "state": "processed"}).encode(),
        )


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        for delivery in process(connection, int(sys.argv[1])):
            print(delivery.delivery_id, delivery.destination_id, "new" if delivery.created else "admitted before")


if __name__ == "__main__":
    main()
