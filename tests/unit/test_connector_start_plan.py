"""How a start is decided, or refused with what to do about it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from connectors.errors import ConfigurationError
from connectors.kafka.position import Position
from connectors.postgres.replication import ServerIdentity
from connectors.postgres.slot import SlotState
from connectors.start_plan import StartKind, check_slot, plan_start

IDENTITY = ServerIdentity(system_id="77", timeline=2, database="shop")
SLOT = SlotState(plugin="pgoutput", database="shop", confirmed_lsn=0x1000, wal_status="reserved")
POSITION = Position(system_id="77", timeline=2, database="shop", slot="s", lsn=0x1000, row=0)


def slot(**changes: Any) -> SlotState:
    values = {name: getattr(SLOT, name) for name in ("plugin", "database", "confirmed_lsn", "wal_status")}
    return SlotState(**values | changes)


def position(**changes: Any) -> Position:
    return msgspec.structs.replace(POSITION, **changes)


@pytest.mark.parametrize(
    ("state", "stored", "expected"),
    [
        (None, None, StartKind.CREATE),
        (None, position(phase="snapshot", lsn=0), StartKind.CREATE),
        (SLOT, position(phase="snapshot", lsn=0), StartKind.RECREATE),
        (SLOT, POSITION, StartKind.RESUME),
        (SLOT, position(lsn=0x2000, row=5), StartKind.RESUME),
        # After a failover with the slot, history goes on.
        (SLOT, position(timeline=1), StartKind.RESUME),
    ],
)
def test_what_fits_together_is_planned(state: SlotState | None, stored: Position | None, expected: StartKind) -> None:
    assert plan_start("s", IDENTITY, state, stored).kind is expected


@pytest.mark.parametrize(
    ("state", "stored", "reason"),
    [
        (SLOT, None, "Kafka holds no position of it"),
        (None, POSITION, "slot s is gone although rows up to 0/1000 are published"),
        (slot(confirmed_lsn=0x1001), POSITION, "slot s begins at 0/1001, behind the published 0/1000"),
        (SLOT, position(system_id="78"), "PostgreSQL system 78, this is 77"),
        (SLOT, position(timeline=3), "left behind by a failover"),
    ],
)
def test_what_could_lose_or_repeat_rows_is_refused(
    state: SlotState | None, stored: Position | None, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        plan_start("s", IDENTITY, state, stored)


def test_a_slot_as_it_should_be_may_be_streamed_from() -> None:
    check_slot("s", IDENTITY, SLOT)
    check_slot("s", IDENTITY, slot(wal_status="extended"))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (slot(wal_status="lost"), "was invalidated"),
        (slot(plugin="wal2json"), "belongs to plugin wal2json"),
        (slot(database="other"), "in database other"),
    ],
)
def test_a_slot_that_cannot_be_streamed_from_is_refused(state: SlotState, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_slot("s", IDENTITY, state)
