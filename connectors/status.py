"""What a running connector shows to the outside: counters, state, and whether it is ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from connectors.errors import Cause
from connectors.histogram import Histogram
from connectors.postgres.standing import SlotStanding, Unpublished

State = Literal["starting", "waiting for slot", "catching up", "paused", "streaming", "reconnecting", "stopped"]

STALL_SECONDS: Final = 10.0
# Longer than an idle connector takes to store that it has passed WAL without rows.
BEHIND_SECONDS: Final = 25.0
COMMIT_BOUNDS_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a watch saw on both sides, beside the stream. Sizes in bytes, times by time.monotonic()."""

    slot: SlotStanding | None = None
    unpublished: Mapping[str, Unpublished] = field(default_factory=dict)
    """By table, for those tables of which it can be known."""
    postgres_answered_at: float | None = None
    kafka_answered_at: float | None = None
    behind_since: float | None = None
    """Since when PostgreSQL has more WAL than is published, while nothing at all is published."""
    warning: str | None = None
    """Why the slot may be lost soon, or is."""


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
    bytes: int = 0
    """Of the source messages of those rows."""
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(*COMMIT_BOUNDS_SECONDS))
    """From the first row of a Kafka transaction to its commit."""
    held_keys: int = 0
    reconnects: int = 0
    reconnect_causes: Counter[Cause] = field(default_factory=Counter)
    last_lsn: int = 0
    as_of_us: int | None = None
    """Of the last stored position, see :class:`connectors.kafka.position.Position`."""
    xid: int | None = None
    """Of the source transaction whose rows came last."""
    last_commit: float | None = None
    """When the last Kafka transaction was committed, by time.monotonic()."""
    busy_since: float | None = None
    """When the Kafka transaction that is open now was begun, by time.monotonic()."""
    silent_since: float | None = None
    """Since when PostgreSQL, which is asked every few seconds, has sent nothing, by time.monotonic()."""

    failure: str = ""
    """Why the last session ended, until rows are committed again."""

    outlook: Outlook | None = None
    """Replaced as a whole by the watch, where one runs."""

    def enter(self, state: State, reason: str = "") -> None:
        self.state = state
        self.reason = reason
        self.busy_since = None
        self.silent_since = None

    def ready(self, now: float) -> tuple[bool, str]:
        """Whether rows flow, and if not, why; a slot in danger is named with either. ``now`` is time.monotonic()."""
        is_ready, text = self._ready(now)
        warning = None if self.outlook is None else self.outlook.warning
        return is_ready, text if warning is None else f"{text}; {warning}"

    def _ready(self, now: float) -> tuple[bool, str]:
        if self.state != "streaming":
            return False, f"{self.state}: {self.reason}" if self.reason else self.state
        if self.failure and self.busy_since is not None:
            # Where the same commit fails in session after session, each streams for a moment.
            return False, f"trying again: {self.failure}"
        outlook = self.outlook or Outlook()
        for since, seconds_max, what in (
            (self.busy_since, STALL_SECONDS, "Kafka has not committed"),
            (self.silent_since, STALL_SECONDS, "PostgreSQL has been silent"),
            (outlook.postgres_answered_at, STALL_SECONDS, "PostgreSQL has not answered"),
            (outlook.kafka_answered_at, STALL_SECONDS, "Kafka has not answered"),
            (outlook.behind_since, BEHIND_SECONDS, "nothing is published of new WAL"),
        ):
            if since is not None and now - since > seconds_max:
                return False, f"stalled: {what} for {now - since:.0f} s"
        return True, "streaming"
