"""One connector at a time works with a slot, from before it exists.

A slot that is being read is busy by itself, but one that is being made, and its snapshot published, is not: a second
connector would take it for the rest of a start that was cut off, drop it, and be treated in the same way. An advisory
lock keeps them apart. It only keeps order: what must not happen twice is kept by the fence and the stored position.
"""

from __future__ import annotations

import psycopg

from connectors.errors import SlotActiveError, TransientError, one_line
from connectors.postgres.replication import connect

# The server notices within half a minute that the host which holds the turn is gone.
_KEEPALIVE = (
    "set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3;"
    " set idle_session_timeout = 0"
)


def take_turn(conninfo: str, slot: str) -> psycopg.Connection:
    """The connection that holds the turn until it is closed.

    Raises SlotActiveError while another connector has it, and what ``connect`` does.
    """
    connection = connect(conninfo, replication=False)
    try:
        connection.execute(_KEEPALIVE)
        row = connection.execute(
            "select pg_try_advisory_lock(hashtextextended(%s, 0))", (f"outrider connector of slot {slot}",)
        ).fetchone()
    except psycopg.Error as error:
        connection.close()
        raise TransientError(f"PostgreSQL: {one_line(error)}") from None
    if row != (True,):
        connection.close()
        raise SlotActiveError(f"another connector works with slot {slot}")
    return connection
