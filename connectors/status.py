"""What a running connector shows to the outside: counters, state, and whether it is ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

State = Literal["starting", "waiting for slot", "snapshot", "paused", "streaming", "reconnecting", "stopped"]

STALL_SECONDS: Final = 10.0


@dataclass(slots=True)
class ConnectorStatus:
    """Written by the connector's thread only; other threads may read single fields at any time."""

    state: State = "starting"
    reason: str = "not started"
    rows: int = 0
    """Records committed to Kafka, those in quarantine included."""
    quarantined: int = 0
    unrouted: int = 0
    """Changes of the publication that no route takes: other tables, updates, deletes."""
    transactions: int = 0
    """Kafka transactions committed."""
    reconnects: int = 0
    last_lsn: int = 0
    """Of the last stored position."""
    last_commit: float | None = None
    """When the last Kafka transaction was committed, by time.monotonic()."""
    busy_since: float | None = None
    """When the Kafka transaction that is open now was begun, by time.monotonic()."""
    silent_since: float | None = None
    """Since when PostgreSQL, which is asked every few seconds, has sent nothing, by time.monotonic()."""

    def enter(self, state: State, reason: str = "") -> None:
        self.state = state
        self.reason = reason
        self.busy_since = None
        self.silent_since = None

    def ready(self, now: float) -> tuple[bool, str]:
        """Whether rows flow, and if not, why. ``now`` is time.monotonic()."""
        if self.state != "streaming":
            return False, f"{self.state}: {self.reason}" if self.reason else self.state
        busy_since = self.busy_since
        if busy_since is not None and now - busy_since > STALL_SECONDS:
            return False, f"stalled: Kafka has not committed for {now - busy_since:.0f} s"
        silent_since = self.silent_since
        if silent_since is not None and now - silent_since > STALL_SECONDS:
            return False, f"stalled: PostgreSQL has been silent for {now - silent_since:.0f} s"
        return True, "streaming"
