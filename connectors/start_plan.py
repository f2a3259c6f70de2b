"""How to start, decided from what PostgreSQL and Kafka remember. Pure.

The slot knows what PostgreSQL may forget, the stored position knows what Kafka holds. They must tell one
story: where they do not, rows could be lost or repeated without a sign, so the start is refused and the
message says how to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from connectors.errors import ConfigurationError
from connectors.kafka.position import Position
from connectors.postgres.lsn import format_lsn
from connectors.postgres.replication import ServerIdentity
from connectors.postgres.slot import SlotState


class StartKind(Enum):
    CREATE = "create"
    """No slot yet: create it and publish the rows that its snapshot sees."""
    RECREATE = "recreate"
    """A first start was cut off before its snapshot was published: drop the slot and create it again."""
    RESUME = "resume"
    """Stream from the stored position."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    kind: StartKind
    why: str


def plan_start(slot: str, identity: ServerIdentity, state: SlotState | None, position: Position | None) -> StartPlan:
    """What to do at start. Raises ConfigurationError where no start keeps the promise."""
    again = _how_to_publish_again(slot)
    if position is None:
        if state is None:
            return StartPlan(StartKind.CREATE, "neither a slot nor a position is there")
        raise ConfigurationError(
            f"slot {slot} exists, but Kafka holds no position of it, so what is published is not known."
            f" If nothing is, drop the slot and start again: select pg_drop_replication_slot('{slot}')"
        )
    if position.system_id != identity.system_id:
        raise ConfigurationError(
            f"the position in Kafka is of PostgreSQL system {position.system_id}, this is {identity.system_id}:"
            f" another server. {again}"
        )
    if position.phase == "snapshot":
        kind = StartKind.CREATE if state is None else StartKind.RECREATE
        return StartPlan(kind, "the first snapshot was not published to its end")
    at = format_lsn(position.lsn)
    if state is None:
        raise ConfigurationError(
            f"slot {slot} is gone although rows up to {at} are published: what was committed since cannot be"
            f" streamed. To publish every row that the tables still hold once more, configure another slot name"
        )
    if position.timeline > identity.timeline:
        raise ConfigurationError(
            f"the server is on timeline {identity.timeline}, the position on {position.timeline}: this server was"
            f" left behind by a failover; connect to the current primary"
        )
    if state.confirmed_lsn > position.lsn:
        raise ConfigurationError(
            f"slot {slot} begins at {format_lsn(state.confirmed_lsn)}, behind the published {at}: it was made anew or"
            f" read by somebody else, and rows between may be missing. {again}"
        )
    return StartPlan(StartKind.RESUME, f"rows up to {at} are published")


def check_slot(slot: str, identity: ServerIdentity, state: SlotState) -> None:
    """Raises ConfigurationError for a slot that cannot be streamed from, before anything is tried with it."""
    if state.plugin != "pgoutput" or state.database != identity.database:
        raise ConfigurationError(
            f"slot {slot} belongs to plugin {state.plugin} in database {state.database}: configure another slot name"
        )
    if state.wal_status == "lost":
        raise ConfigurationError(
            f"slot {slot} was invalidated (max_slot_wal_keep_size): its WAL is gone, rows may be missing."
            f" {_how_to_publish_again(slot)}"
        )


def _how_to_publish_again(slot: str) -> str:
    return (
        "To publish every row that the tables still hold once more, configure another slot name"
        f" and drop this slot: select pg_drop_replication_slot('{slot}')"
    )
