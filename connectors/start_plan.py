"""How to start, decided from what PostgreSQL and Kafka remember. Pure.

The slot knows what PostgreSQL may forget, the stored position knows what Kafka holds. Where they tell one story,
streaming goes on. Where they do not, rows could be missing from the topics; then the slot is made anew and exactly
those rows are published that the tables hold and the topics do not (:mod:`connectors.catch_up`). What could only be
guessed is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from connectors.errors import ConfigurationError
from connectors.kafka.position import Position
from connectors.postgres.lsn import format_lsn
from connectors.postgres.replication import ServerIdentity
from connectors.postgres.slot import SlotState
from connectors.postgres.timeline import is_in_history

Repair: TypeAlias = Literal["automatic", "refuse"]


class StartKind(Enum):
    RESUME = "resume"
    """Stream from the stored position."""
    CATCH_UP = "catch up"
    """Make the slot anew, publish by id what is missing, then stream."""
    REFUSE = "refuse"
    """Do nothing: somebody has to decide."""


class StartCase(Enum):
    """What was found. The value is its name in logs and in the plan."""

    FIRST_START = "first start"
    AGREED = "slot and position agree"
    FAILED_OVER = "failed over with the slot"
    UNFINISHED = "catching up was cut off"
    SLOT_MISSING = "slot missing"
    SLOT_AHEAD = "slot ahead of the position"
    SLOT_INVALIDATED = "slot invalidated"
    POSITION_MISSING = "position missing"
    HISTORY_LOST = "commits lost by the server"
    PUBLICATION_REMADE = "publication made anew"
    OTHER_SYSTEM = "another system"
    LEFT_BEHIND = "server left behind"
    FOREIGN_SLOT = "slot of another plugin or database"


# Of these a policy may say that a person has to look first.
_REPAIRS: Final = frozenset(
    {
        StartCase.SLOT_MISSING,
        StartCase.SLOT_AHEAD,
        StartCase.SLOT_INVALIDATED,
        StartCase.POSITION_MISSING,
        StartCase.HISTORY_LOST,
        StartCase.PUBLICATION_REMADE,
    }
)


_MENDS: Final = {
    StartCase.OTHER_SYSTEM: "where these rows shall go on in these topics, unset the position by a record without a value",
    StartCase.LEFT_BEHIND: "connect to the current primary",
    StartCase.FOREIGN_SLOT: "configure another slot name",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StartFacts:
    """What is known before anything is changed. ``publication`` is its fingerprint, see Publication."""

    slot_name: str
    server: ServerIdentity
    slot: SlotState | None
    position: Position | None
    publication: str


@dataclass(frozen=True, slots=True)
class StartPlan:
    """``why`` is one sentence without a full stop; ``drops_slot`` says that the slot there is must go first."""

    kind: StartKind
    case: StartCase
    why: str
    drops_slot: bool = False


class RefusedStartError(ConfigurationError):
    """The plan is to refuse. Who knows commands that help says them in place of the mend, by ``plan.case``."""

    def __init__(self, plan: StartPlan) -> None:
        self.plan = plan
        self.what = f"{plan.case.value}: {plan.why}"
        mend = _MENDS.get(plan.case, 'start with repair = "automatic" to publish by id what the topics lack')
        super().__init__(f"{self.what}; {mend}")


def plan_start(facts: StartFacts, repair: Repair) -> StartPlan:
    """What to do at start. With ``repair`` "refuse" only a first start and its rest publish by id."""
    position = facts.position
    foreign = foreign_slot(facts)
    if foreign is not None:
        return foreign
    if position is None:
        plan = _without_position(facts)
    else:
        plan = _untrusted_position(facts, position) or _broken(facts, position) or _resume(facts, position)
    if plan.case in _REPAIRS and repair == "refuse":
        return StartPlan(StartKind.REFUSE, plan.case, plan.why)
    return plan


def foreign_slot(facts: StartFacts) -> StartPlan | None:
    """The refusal of a slot that is not ours to read or to drop."""
    slot = facts.slot
    if slot is None or (slot.plugin == "pgoutput" and slot.database == facts.server.database):
        return None
    what = "is physical" if slot.plugin is None else f"belongs to plugin {slot.plugin} in database {slot.database}"
    why = f"slot {facts.slot_name} {what}"
    return StartPlan(StartKind.REFUSE, StartCase.FOREIGN_SLOT, why)


def _without_position(facts: StartFacts) -> StartPlan:
    if facts.slot is None:
        return _catch_up(facts, StartCase.FIRST_START, "neither a slot nor a position is there")
    why = f"slot {facts.slot_name} is there, but Kafka holds no position of it"
    return _catch_up(facts, StartCase.POSITION_MISSING, why)


def _untrusted_position(facts: StartFacts, position: Position) -> StartPlan | None:
    """The refusal of a position that says nothing about this server, or that this server is too old for."""
    server = facts.server
    if position.system_id != server.system_id:
        why = (
            f"the position in Kafka is of PostgreSQL system {position.system_id}, this server is {server.system_id}:"
            " it says nothing about the rows here"
        )
        return StartPlan(StartKind.REFUSE, StartCase.OTHER_SYSTEM, why)
    if position.timeline > server.timeline:
        why = (
            f"the server is on timeline {server.timeline}, the position on {position.timeline}: a failover left this"
            " server behind"
        )
        return StartPlan(StartKind.REFUSE, StartCase.LEFT_BEHIND, why)
    return None


def _broken(facts: StartFacts, position: Position) -> StartPlan | None:
    """Catching up, where rows could be missing between what is published and what the slot would send."""
    slot, server = facts.slot, facts.server
    at = format_lsn(position.lsn)
    if position.phase == "snapshot":
        # Begun under whatever policy there was then: half of it published is no state to stay in.
        case, why = StartCase.UNFINISHED, "rows that were missing are not published to their end"
    elif not is_in_history(
        position.lsn,
        position.timeline,
        server_timeline=server.timeline,
        server_lsn=server.wal_end_lsn,
        switches=server.switches,
    ):
        case = StartCase.HISTORY_LOST
        why = (
            f"rows up to {at} on timeline {position.timeline} are published, but the server's history does not reach"
            f" that far (timeline {server.timeline}, WAL ends at {format_lsn(server.wal_end_lsn)}): a failover, a"
            " restore or a crash lost commits that readers of the topics have seen"
        )
    elif slot is None:
        case, why = StartCase.SLOT_MISSING, f"slot {facts.slot_name} is gone, rows up to {at} are published"
    elif slot.is_lost:
        reason = slot.lost_because or "its WAL is gone"
        case = StartCase.SLOT_INVALIDATED
        why = f"slot {facts.slot_name} was invalidated ({reason}), rows up to {at} are published"
    elif slot.confirmed_lsn > position.lsn:
        case = StartCase.SLOT_AHEAD
        why = (
            f"slot {facts.slot_name} begins at {format_lsn(slot.confirmed_lsn)}, beyond the published {at}: it was"
            " made anew, moved, or read by somebody else"
        )
    elif position.publication not in (None, facts.publication):
        case = StartCase.PUBLICATION_REMADE
        why = "the publication was made or changed since: rows written meanwhile may not be in the stream"
    else:
        return None
    return _catch_up(facts, case, why)


def _resume(facts: StartFacts, position: Position) -> StartPlan:
    at = format_lsn(position.lsn)
    if position.timeline != facts.server.timeline:
        why = f"rows up to {at} are published, and timeline {facts.server.timeline} goes on from there"
        return StartPlan(StartKind.RESUME, StartCase.FAILED_OVER, why)
    return StartPlan(StartKind.RESUME, StartCase.AGREED, f"rows up to {at} are published")


def _catch_up(facts: StartFacts, case: StartCase, why: str) -> StartPlan:
    return StartPlan(StartKind.CATCH_UP, case, why, drops_slot=facts.slot is not None)
