"""Records of the attempts topic without a pipeline behind them, in transactions as the connector writes them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.contracts import assert_fits
from topics.codecs import Attempt

BEGIN = datetime(2026, 11, 30, 12, tzinfo=UTC)
PARTITIONS = 3


def attempt_record(number: int, **changes: Any) -> Attempt:
    """Attempt ``number``, a second after the one before; each fifth failed."""
    at = BEGIN + timedelta(seconds=number)
    is_success = number % 5 != 0
    moment = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    values: dict[str, Any] = {
        "attempt_id": number,
        "recorded_at": moment,
        "delivery_id": f"dlv_{number}",
        "event_id": f"event-{number}",
        "event_type": "media.processed" if number % 2 else "rights.changed",
        "destination_id": f"d{number % 4}",
        "attempt": 1,
        "dispatch_seq": 1,
        "worker_id": "w",
        "result": "succeeded" if is_success else "retry",
        "outcome": "success" if is_success else "server_error",
        "status": 200 if is_success else 500,
        "ambiguous": not is_success,
        "error": None,
        "response_excerpt": None,
        "retry_after_seconds": None,
        "next_attempt_at": None,
        "key_ids": ["key_1"],
        "payload_sha256": b"\0" * 32,
        "started_at": moment,
        "duration_seconds": (number % 100) / 1000,
    }
    return Attempt(**{**values, **changes})


class AttemptsTopic:
    """``<prefix>.attempts``, its own."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.name = f"{prefix}.attempts"
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(30)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "transactional.id": f"{prefix}.test", "log_level": 0}
        )
        self._producer.init_transactions(30)

    def publish(self, attempts: Iterable[Attempt], *, commit: bool = True) -> None:
        """In one transaction."""
        self._producer.begin_transaction()
        for attempt in attempts:
            key, value = attempt.destination_id.encode(), msgspec.json.encode(attempt)
            headers = {"id": str(attempt.attempt_id), "delivery_id": attempt.delivery_id, "result": attempt.result}
            assert_fits(self.name, key, value, headers.items())
            self._producer.produce(self.name, value, key, headers=headers)
        self._end(commit)

    def publish_foreign(self, *values: bytes) -> None:
        """Messages that are no attempts."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self.name, value, partition=0)
        self._end(True)

    def _end(self, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.flush(30)
            self._producer.abort_transaction(30)
