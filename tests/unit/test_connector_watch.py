"""What a second look at the slot makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.postgres.standing import SlotStanding
from connectors.status import ConnectorStatus
from connectors.watch import Backlog, slot_danger

SLOT = SlotStanding(
    active_pid=1,
    plugin="pgoutput",
    database="db",
    wal_status="reserved",
    safe_wal_size=None,
    confirmed_lsn=100,
    server_lsn=100,
)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        (None, None),
        (SLOT, None),
        (replace(SLOT, safe_wal_size=64 * MIB), None),
        (replace(SLOT, safe_wal_size=64 * MIB - 1), "the slot is lost after 63 MiB more of WAL"),
        (replace(SLOT, safe_wal_size=-5), "the slot is lost after 0 MiB more of WAL"),
        (replace(SLOT, wal_status="unreserved", safe_wal_size=-5), "the slot's WAL is unreserved"),
        (replace(SLOT, wal_status="lost"), "the slot's WAL is lost"),
    ],
)
def test_a_slot_in_danger_is_told_before_it_is_lost(slot: SlotStanding | None, text: str | None) -> None:
    assert slot_danger(slot, 64 * MIB)[1] == text


def test_only_wal_of_which_nothing_is_published_is_a_backlog() -> None:
    status = ConnectorStatus()
    status.enter("streaming")
    status.last_lsn = 100
    backlog = Backlog()
    ahead = replace(SLOT, server_lsn=500)
    assert backlog.look(status, SLOT, 1.0) is None
    assert [backlog.look(status, ahead, now) for now in (2.0, 3.0, 4.0)] == [2.0, 2.0, 2.0]
    status.transactions += 1  # a part of a large source transaction: the LSN stays
    assert backlog.look(status, ahead, 5.0) is None
    assert backlog.look(status, ahead, 6.0) == 6.0
    status.enter("paused")
    assert backlog.look(status, ahead, 7.0) is None
    status.enter("streaming")
    assert backlog.look(status, ahead, 8.0) == 8.0
    assert backlog.look(status, None, 9.0) is None
