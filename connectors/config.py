"""Everything that one connector needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from connectors.route import Route
from connectors.start_plan import Repair


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectorConfig:
    """``conninfo`` is libpq's connection string; ``kafka`` is librdkafka's configuration with addresses and
    security settings. Both may hold secrets, so neither is shown by repr.

    A Kafka transaction closes after ``transaction_rows`` rows, after ``transaction_bytes`` of source messages, or
    as soon as nothing more has arrived. The broker gives it up after ``transaction_timeout_seconds``.
    ``repair`` says whether a start that finds slot and position at odds makes them agree by itself. The
    publication is looked at every ``publication_watch_seconds``.
    At most ``held_keys_max`` keys are held behind quarantined rows: rather than forget one, the connector stops. The watch warns
    when the slot is lost after less than ``safe_wal_warning_bytes`` more of WAL.
    """

    conninfo: str = field(repr=False)
    kafka: Mapping[str, Any] = field(repr=False)
    slot: str
    publication: str
    routes: tuple[Route, ...]
    transactional_id: str
    positions_topic: str
    quarantine_topic: str
    control_topic: str
    transaction_rows: int = 4_000
    transaction_bytes: int = 4 * 1024 * 1024
    transaction_timeout_seconds: float = 60.0
    repair: Repair = "automatic"
    publication_watch_seconds: float = 5.0
    idle_position_seconds: float = 10.0
    backoff_max_seconds: float = 10.0
    held_keys_max: int = 1_000
    safe_wal_warning_bytes: int = 1024 * 1024 * 1024

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that is written to."""
        own = (self.quarantine_topic, self.control_topic, self.positions_topic)
        return tuple(dict.fromkeys((*(topic for route in self.routes for topic in route.topics), *own)))

    @property
    def changes(self) -> tuple[Literal["update", "delete"], ...]:
        """Changes of rows, beside insertions, that a route does something about."""
        updates: tuple[Literal["update"], ...] = ("update",) if any(r.updates != "ignore" for r in self.routes) else ()
        deletes: tuple[Literal["delete"], ...] = ("delete",) if any(r.deletes != "ignore" for r in self.routes) else ()
        return (*updates, *deletes)
