"""What can go wrong in a connector, sorted by who can mend it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias


class ConnectorError(Exception):
    """Base of all errors that a connector raises on purpose. Each message is one line."""


class ConfigurationError(ConnectorError):
    """Trying again will not help: the message says what somebody has to change."""


class MissingTopicError(ConfigurationError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"Kafka topic {topic} does not exist: create it")
        self.topic = topic


class MissingPublicationError(ConfigurationError):
    """``lack`` says what is missing of it; ``tables`` are the (schema, name) pairs that it should have."""

    def __init__(self, publication: str, lack: str, tables: Iterable[tuple[str, str]]) -> None:
        names = ", ".join(f"{schema}.{table}" for schema, table in tables)
        self.what = f"PostgreSQL publication {publication} {lack}"
        super().__init__(
            f"{self.what}; one that fits is made by: create publication {publication} for table {names}"
            " with (publish = 'insert', publish_via_partition_root = true)"
        )


class TransientError(ConnectorError):
    """A service is away, slow or restarting, or another connector is at work: try again later."""


class KafkaUnavailableError(TransientError):
    """Kafka does not answer, or not in time."""


class FencedError(TransientError):
    """Another connector has taken over the transactional ids."""


class SlotActiveError(TransientError):
    """Another connection reads the slot."""


Cause: TypeAlias = Literal["kafka", "fenced", "configuration", "postgres"]
CAUSES: Final[tuple[Cause, ...]] = ("kafka", "fenced", "configuration", "postgres")


def cause_of(error: ConnectorError) -> Cause:
    """Which side ended a session, for counting: what is not Kafka's came from PostgreSQL or its stream."""
    if isinstance(error, KafkaUnavailableError):
        return "kafka"
    if isinstance(error, FencedError):
        return "fenced"
    return "configuration" if isinstance(error, ConfigurationError) else "postgres"


def one_line(error: object) -> str:
    """An error's text without line breaks, for logs and for the terminal."""
    return " ".join(str(error).split())
