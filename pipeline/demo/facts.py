"""The facts that the report compares: what was done, what the ledger and the topics say, what receivers saw.

Each comes from another witness: admissions from the application's own notes, receipts from the receivers' own record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.demo.receipts import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One delivery whose transaction the application saw commit."""

    delivery_id: str
    event_id: str
    asset: str
    """Key of the business row that committed with it."""
    destination_id: str
    body_sha256: str
    committed_at: float
    """Seconds of CLOCK_REALTIME, right after the commit returned."""
    is_scheduled: bool
    """It had a deliver_at, so its latency says nothing."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An event that was admitted in a transaction which then did not commit."""

    event_id: str
    asset: str


@dataclass(frozen=True, slots=True)
class Readmission:
    """What admit answered when a committed event was admitted once more."""

    delivery_id: str
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDelivery:
    delivery_id: str
    event_id: str
    destination_id: str
    state: Literal["pending", "enqueued", "leased", "succeeded", "dead"]
    attempt: int
    body_sha256: str
    waiting_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAttempt:
    attempt_id: str
    delivery_id: str
    attempt: int
    result: Literal["succeeded", "retry", "dead", "late", "lease_expired"]
    body_sha256: str


@dataclass(frozen=True, slots=True)
class OutboxRow:
    message_id: str
    reason: str
    """Why the delivery was handed to Kafka: admitted, turn, due, lease_expired, lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One record of a topic, as a read_committed reader sees it."""

    record_id: str
    """message_id of a dispatch, attempt_id of an attempt."""
    delivery_id: str
    event_id: str
    body_sha256: str
    """Of a dispatch's value, which is the event's body; of an attempt, what it says was sent."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A record that a worker or the connector could not make sense of. The demo sends none such."""

    delivery_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A component ended by SIGKILL and started again."""

    component: str
    killed_at: float
    """Seconds of CLOCK_REALTIME."""
    receipts: int
    """Deliveries that had been received by then."""


@dataclass(frozen=True, slots=True)
class DestinationFact:
    """What is known of a destination beforehand."""

    behaviour: str
    settles: str | None
    """State that each of its deliveries must have reached; None: it may be waiting."""
    is_healthy: bool
    """It answers at once: latency is measured on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    destinations: Mapping[str, DestinationFact]
    """By id."""
    admissions: Sequence[Admission]
    rolled_back: Sequence[RolledBack] = ()
    readmissions: Sequence[Readmission] = ()
    business_rows: frozenset[str] = frozenset()
    """Keys in the application's own table."""
    deliveries: Sequence[LedgerDelivery] = ()
    attempts: Sequence[LedgerAttempt] = ()
    event_ids: frozenset[str] = frozenset()
    """Every event in the ledger."""
    outbox: Sequence[OutboxRow] = ()
    dispatches: Sequence[TopicRecord] = ()
    attempt_records: Sequence[TopicRecord] = ()
    quarantined: Sequence[Quarantined] = ()
    receipts: Sequence[Receipt] = ()
    kills: Sequence[Kill] = ()
    kills_planned: int = 0
    exit_statuses: Mapping[str, int | None] = field(default_factory=dict)
    """Component -> how it ended when it was asked to, as ChildProcess.exit_status says it."""
    elapsed_seconds: float = 0.0
