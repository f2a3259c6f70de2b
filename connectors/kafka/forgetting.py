"""A stored position given up on purpose, so that the next start has to find out anew what is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from connectors.kafka.position import position_key
from connectors.kafka.sink import transactional_ids
from connectors.kafka.transactions import TransactionalProducer

FENCE_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 30.0
RECORD_BYTES_MAX: Final = 64 * 1024


def forget_position(
    kafka: Mapping[str, Any], *, transactional_id: str, positions_topic: str, database: str, slot: str
) -> None:
    """Take the connector's transactional ids, so that nothing of it can be committed any more, and unset its position.

    Raises TransientError or ConfigurationError, and then the position may be there still.
    """

    def nothing() -> None:
        pass

    producers = [
        TransactionalProducer(
            kafka,
            transactional_id=name,
            record_bytes_max=RECORD_BYTES_MAX,
            transaction_timeout_seconds=TIMEOUT_SECONDS,
        )
        for name in transactional_ids(transactional_id)
    ]
    try:
        for producer in producers:
            producer.fence(FENCE_SECONDS, nothing)
        first = producers[0]
        first.begin()
        first.put(positions_topic, position_key(database, slot), None, [], nothing)
        first.flush(nothing)
        first.commit(nothing)
    finally:
        for producer in producers:
            producer.close()
