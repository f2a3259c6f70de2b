"""Whether a group is at work, and who is in it. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.offsets.places import Place

UNKNOWN = "unknown to the broker"
INACTIVE_STATES = ("empty", UNKNOWN)
MEMBERS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Member:
    client_id: str
    host: str
    instance_id: str | None
    """Set for static members, which stay in the group when they stop, until their session time-out."""
    partitions: tuple[Place, ...]

    def __str__(self) -> str:
        return f"{self.instance_id or self.client_id} at {self.host}"


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """As the broker's coordinator sees the group. Consumers that use assign() are no members, and are not seen."""

    group: str
    state: str
    members: tuple[Member, ...] = ()

    @property
    def is_active(self) -> bool:
        """A state that this client does not know counts as active."""
        return bool(self.members) or self.state not in INACTIVE_STATES

    @property
    def why_active(self) -> str:
        named = ", ".join(map(str, self.members[:MEMBERS_NAMED_MAX])) or "no member yet"
        more = len(self.members) - MEMBERS_NAMED_MAX
        return (
            f"group {self.group} is active ({self.state}; {named}{f', and {more} more' if more > 0 else ''}): stop its "
            "members. One that was killed, or is static, counts until its session time-out: --wait-seconds waits for it"
        )
