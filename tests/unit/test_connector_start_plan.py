"""How a start is decided: resumed, caught up by ids, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest

from connectors.kafka.position import Position
from connectors.postgres.replication import ServerIdentity
from connectors.postgres.slot import SlotState
from connectors.start_plan import RefusedStartError, Repair, StartCase, StartFacts, StartKind, plan_start

SERVER = ServerIdentity(system_id="77", timeline=3, database="shop", wal_end_lsn=0x9000, switches={1: 0x500, 2: 0x900})
SLOT = SlotState(plugin="pgoutput", database="shop", confirmed_lsn=0x1000, wal_status="reserved")
POSITION = Position(system_id="77", timeline=3, database="shop", slot="s", lsn=0x1000, row=0, publication="1.1")
FACTS = StartFacts(slot_name="s", server=SERVER, slot=SLOT, position=POSITION, publication="1.1")


def slot(**changes: Any) -> SlotState:
    return replace(SLOT, **changes)


def position(**changes: Any) -> Position:
    return msgspec.structs.replace(POSITION, **changes)


def facts(**changes: Any) -> StartFacts:
    return replace(FACTS, **changes)


@pytest.mark.parametrize("repair", get_args(Repair))
@pytest.mark.parametrize(
    ("found", "case"),
    [
        (facts(), StartCase.AGREED),
        (facts(position=position(lsn=0x2000, row=5)), StartCase.AGREED),  # the slot is behind, and is skipped over
        (facts(slot=slot(wal_status="unreserved")), StartCase.AGREED),
        (facts(position=position(publication=None)), StartCase.AGREED),  # stored before fingerprints were
        (facts(slot=slot(confirmed_lsn=0x800), position=position(timeline=2, lsn=0x900)), StartCase.FAILED_OVER),
        (facts(slot=slot(confirmed_lsn=0x400), position=position(timeline=1, lsn=0x500)), StartCase.FAILED_OVER),
    ],
)
def test_what_tells_one_story_is_resumed(found: StartFacts, case: StartCase, repair: Repair) -> None:
    plan = plan_start(found, repair)
    assert (plan.kind, plan.case, plan.drops_slot) == (StartKind.RESUME, case, False)


@pytest.mark.parametrize("repair", get_args(Repair))
@pytest.mark.parametrize(
    ("found", "case", "drops_slot"),
    [
        (facts(slot=None, position=None), StartCase.FIRST_START, False),
        (facts(slot=None, position=position(phase="snapshot", lsn=0)), StartCase.UNFINISHED, False),
        (facts(position=position(phase="snapshot", lsn=0)), StartCase.UNFINISHED, True),
    ],
)
def test_a_first_start_and_the_rest_of_one_catch_up_under_any_policy(
    found: StartFacts, case: StartCase, drops_slot: bool, repair: Repair
) -> None:
    plan = plan_start(found, repair)
    assert (plan.kind, plan.case, plan.drops_slot) == (StartKind.CATCH_UP, case, drops_slot)


@pytest.mark.parametrize(
    ("found", "case", "drops_slot", "why"),
    [
        (facts(position=None), StartCase.POSITION_MISSING, True, "Kafka holds no position"),
        (facts(slot=None), StartCase.SLOT_MISSING, False, "slot s is gone, rows up to 0/1000"),
        (facts(slot=slot(wal_status="lost")), StartCase.SLOT_INVALIDATED, True, "its WAL is gone"),
        (
            facts(slot=slot(wal_status="lost", lost_because="wal_removed")),
            StartCase.SLOT_INVALIDATED,
            True,
            r"was invalidated \(wal_removed\)",
        ),
        (facts(slot=slot(confirmed_lsn=0x1001)), StartCase.SLOT_AHEAD, True, "begins at 0/1001, beyond"),
        (facts(publication="1.2"), StartCase.PUBLICATION_REMADE, True, "may not be in the stream"),
        (facts(position=position(lsn=0x9001)), StartCase.HISTORY_LOST, True, "WAL ends at 0/9000"),
        (facts(position=position(timeline=2, lsn=0x901)), StartCase.HISTORY_LOST, True, "lost commits"),
        (facts(slot=None, position=position(timeline=2, lsn=0x901)), StartCase.HISTORY_LOST, False, "lost commits"),
        (facts(slot=None, position=position(timeline=2, lsn=0x900)), StartCase.SLOT_MISSING, False, "is gone"),
    ],
)
def test_what_may_miss_rows_is_caught_up_or_refused_by_policy(
    found: StartFacts, case: StartCase, drops_slot: bool, why: str
) -> None:
    plan = plan_start(found, "automatic")
    assert (plan.kind, plan.case, plan.drops_slot) == (StartKind.CATCH_UP, case, drops_slot)
    refused = plan_start(found, "refuse")
    assert (refused.kind, refused.case, refused.why) == (StartKind.REFUSE, case, plan.why)
    assert not refused.drops_slot
    with pytest.raises(RefusedStartError, match=f'^{case.value}: .*{why}.*; start with repair = "automatic"'):
        raise RefusedStartError(refused)


@pytest.mark.parametrize("repair", get_args(Repair))
@pytest.mark.parametrize(
    ("found", "case", "why"),
    [
        (facts(position=position(system_id="78")), StartCase.OTHER_SYSTEM, "PostgreSQL system 78, this server is 77"),
        (facts(position=position(system_id="78", phase="snapshot")), StartCase.OTHER_SYSTEM, "says nothing"),
        (facts(slot=None, position=position(system_id="78")), StartCase.OTHER_SYSTEM, "says nothing"),
        (facts(position=position(timeline=4)), StartCase.LEFT_BEHIND, "left this server behind"),
        (facts(slot=slot(plugin="wal2json")), StartCase.FOREIGN_SLOT, "belongs to plugin wal2json"),
        (facts(slot=slot(database="other"), position=None), StartCase.FOREIGN_SLOT, "in database other"),
        (facts(slot=slot(plugin=None, database=None)), StartCase.FOREIGN_SLOT, "is physical"),
    ],
)
def test_what_could_only_be_guessed_is_refused_under_any_policy(
    found: StartFacts, case: StartCase, why: str, repair: Repair
) -> None:
    plan = plan_start(found, repair)
    assert (plan.kind, plan.case, plan.drops_slot) == (StartKind.REFUSE, case, False)
    assert why in plan.why
    assert 'repair = "automatic"' not in str(RefusedStartError(plan))
