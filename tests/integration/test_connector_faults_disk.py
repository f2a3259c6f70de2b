"""PostgreSQL has no room to decode a large transaction; the connector goes on by itself when it has.

What the server cannot hold in memory while it decodes it writes to files of the slot. A limit of the size of files
stands for the full disk: the same write fails in the same place, and nothing else of the machine is concerned.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pipeline.stack.embedded import EmbeddedStack
from tests.support.connector_world import world_of
from tests.support.fault_world import FaultWorld, wait_not_ready
from tests.support.file_size_limit import file_size_limit

# Segments of the WAL have just this size: backends go on writing them.
LIMIT_BYTES = 16 * 1024 * 1024
# Their changes fill several times the limit when they are decoded, out of about one segment.
FOREIGN_ROWS = 400_000


@pytest.fixture
def faults(settings_values: dict[str, object], database: str) -> FaultWorld:
    world = world_of(settings_values)
    world.create_topics()
    return FaultWorld(world, database)


def test_a_server_without_room_to_decode_is_told_of_and_waited_for(
    faults: FaultWorld, embedded_stack: EmbeddedStack
) -> None:
    small_memory = make_conninfo(faults.database, options="-c logical_decoding_work_mem=1MB")
    with faults.connector(conninfo=small_memory) as connector:
        faults.write()
        with file_size_limit(embedded_stack.postgres.process.pid, LIMIT_BYTES):
            # Backends inherit the limit: the stream has to be one that began under it.
            with psycopg.connect(faults.database, autocommit=True) as connection:
                connection.execute("create table public.foreign_rows (n integer)")
                connection.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
                    [faults.world.config.slot],
                )
                with connection.transaction():
                    connection.execute(
                        "insert into public.foreign_rows select * from generate_series(1, %s)", [FOREIGN_ROWS]
                    )
                    faults.write_in(connection)
            wait_not_ready(connector, "could not write", "No space left", "too large")
        faults.judge(connector)
