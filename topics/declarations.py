"""Every topic of the pipeline: name, partitions, retention, settings, and the contract of its records.

Readers outside this project may rely on what the contracts say. Records are bounded: a topic takes
``MESSAGE_BYTES_MAX``, sixteen times the default limit of a payload. The limit of admission may be raised
up to about that; a row that is larger goes to the quarantine topic with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

DAY_MS: Final = 24 * 60 * 60 * 1000
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024

DISPATCH: Final = "dispatch"
ATTEMPTS: Final = "attempts"
POSITIONS: Final = "connector.positions"
CONTROL: Final = "connector.control"
QUARANTINE: Final = "quarantine"
WAKEUPS: Final = "wakeups"


@dataclass(frozen=True, slots=True)
class Contract:
    """What a record holds. Headers are UTF-8 text by name; those marked optional may be missing."""

    key: str
    value: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicDeclaration:
    """A topic as it should be. ``config`` holds every setting that matters, in Kafka's own names and texts."""

    name: str
    purpose: str
    partitions: int
    replication_factor: int
    config: dict[str, str]
    contract: Contract


_DISPATCH_CONTRACT = Contract(
    key="destination_id, UTF-8",
    value="the payload, byte for byte as it was admitted",
    headers={
        "id": "message_id: transport identity, derived from delivery_id and dispatch_seq",
        "delivery_id": "identity of the delivery; never changes",
        "dispatch_seq": "decimal; a message is stale unless this is the delivery's current one",
        "event_id": "optional",
        "event_type": "optional",
        "content_type": "optional",
        "reason": "optional: admitted, turn, due, lease_expired, lost or replay",
        "headers": "optional: JSON object of strings, left out where it is empty",
    },
)

_ATTEMPTS_CONTRACT = Contract(
    key="destination_id, UTF-8",
    value="JSON object of the attempt, see topics.codecs.Attempt",
    headers={
        "id": "attempt_id, decimal",
        "delivery_id": "identity of the delivery",
        "result": "succeeded, retry, dead, late or lease_expired",
    },
)

_POSITIONS_CONTRACT = Contract(key="JSON object: database, slot", value="JSON object: how far this slot is published")

_CONTROL_CONTRACT = Contract(
    key="JSON object: database, slot, kind (pause, release, held), and of a release its id, of a held key table and key",
    value="JSON object, see connectors/control.py; the last one under a key counts",
)

_QUARANTINE_CONTRACT = Contract(
    key="the refused record's key",
    value="JSON object: database, table, topic, reason, lsn, row, value_bytes, id, columns, is_held; of a message that a worker"
    " could not read, that message's value; of a mark: state, entries, operator, reason, at",
    headers={
        "quarantine_reason": "why; not on a mark",
        "quarantine_table": "on a row: its table",
        "quarantine_origin": "on a message: topic/partition/offset where it lies",
        "quarantine_mark": "on a mark, which settles earlier entries by their offsets: released, gone or given_up",
        "…": "the refused record's headers",
    },
)

_WAKEUPS_CONTRACT = Contract(
    key="id of the source that somebody should look at, UTF-8",
    value="ignored, and may be missing: a wake-up carries no meaning",
)


def declare_topics(
    *,
    prefix: str,
    dispatch_partitions: int,
    attempts_partitions: int,
    replication_factor: int,
    min_insync_replicas: int,
) -> tuple[TopicDeclaration, ...]:
    """All topics under ``prefix``. Raises ValueError where more copies must hold a write than there are."""
    if min_insync_replicas > replication_factor:
        raise ValueError(
            f"{min_insync_replicas} in-sync replicas cannot be reached with a replication factor of {replication_factor}"
        )

    def declaration(suffix: str, purpose: str, partitions: int, contract: Contract, **config: str) -> TopicDeclaration:
        return TopicDeclaration(
            name=f"{prefix}.{suffix}",
            purpose=purpose,
            partitions=partitions,
            replication_factor=replication_factor,
            config={
                "min.insync.replicas": str(min_insync_replicas),
                "max.message.bytes": str(MESSAGE_BYTES_MAX),
                **{name.replace("_", "."): value for name, value in config.items()},
            },
            contract=contract,
        )

    return (
        declaration(
            DISPATCH,
            "deliveries to carry out, in order per destination",
            dispatch_partitions,
            _DISPATCH_CONTRACT,
            cleanup_policy="delete",
            retention_ms=str(7 * DAY_MS),
        ),
        declaration(
            ATTEMPTS,
            "attempts that ended, in order per destination",
            attempts_partitions,
            _ATTEMPTS_CONTRACT,
            cleanup_policy="delete",
            retention_ms=str(30 * DAY_MS),
        ),
        declaration(
            POSITIONS,
            "how far each slot is published",
            1,
            _POSITIONS_CONTRACT,
            cleanup_policy="compact",
            # Small segments, cleaned early: a starting connector reads what is left.
            segment_bytes=str(16 * 1024 * 1024),
            min_cleanable_dirty_ratio="0.1",
        ),
        declaration(
            CONTROL,
            "what operators ask of a connector, and what it must not forget",
            1,
            _CONTROL_CONTRACT,
            cleanup_policy="compact",
            segment_bytes=str(1024 * 1024),
            min_cleanable_dirty_ratio="0.1",
        ),
        declaration(
            QUARANTINE,
            "rows that could not be published, each with its reason",
            1,
            _QUARANTINE_CONTRACT,
            cleanup_policy="delete",
            retention_ms=str(30 * DAY_MS),
        ),
        declaration(
            WAKEUPS,
            "calls for a pass over a source, from whoever knows that something became due",
            1,
            _WAKEUPS_CONTRACT,
            cleanup_policy="delete",
            retention_ms=str(DAY_MS),
        ),
    )
