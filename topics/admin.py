"""Real topics: read, created and altered through Kafka's admin protocol. Every call has a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not declared so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from topics.declarations import TopicDeclaration
from topics.difference import ActualTopic, Difference, Remedy
from topics.security import KafkaConnection

DEADLINE_SECONDS: Final = 15.0
METADATA_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.05


class TopicsError(Exception):
    """Kafka did not do what it was asked; one line."""


class KafkaUnreachableError(TopicsError):
    """No broker answers at the configured addresses."""


class TopicAdmin:
    """The topics of one cluster."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._addresses = connection.bootstrap_servers
        self._last_error: KafkaError | None = None
        # The client's own log lines are off, because errors are reported by this class.
        configuration: dict[str, Any] = {
            **connection.librdkafka(),
            "socket.connection.setup.timeout.ms": 5_000,
            "log_level": 0,
            "error_cb": self._on_error,
        }
        self._client = AdminClient(configuration)

    def describe(self, names: Iterable[str]) -> dict[str, ActualTopic]:
        """Those of the named topics that exist. Raises KafkaUnreachableError or TopicsError."""
        try:
            metadata = self._client.list_topics(timeout=METADATA_SECONDS)
        except KafkaException as exception:
            cause: KafkaError = self._last_error or exception.args[0]
            raise KafkaUnreachableError(f"Kafka does not answer at {self._addresses}: {cause.str()}") from None
        wanted = [name for name in names if name in metadata.topics]
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in wanted}
        if not resources:
            return {}
        futures = self._client.describe_configs(list(resources.values()), request_timeout=DEADLINE_SECONDS)
        found: dict[str, ActualTopic] = {}
        for name, resource in resources.items():
            entries: dict[str, ConfigEntry] | None = _result(
                futures[resource],
                f"topic {name} cannot be described",
                tolerate=KafkaError.UNKNOWN_TOPIC_OR_PART,
            )
            if entries is None:
                continue
            partitions = metadata.topics[name].partitions
            found[name] = ActualTopic(
                name=name,
                partitions=len(partitions),
                replication_factor=min(len(partition.replicas) for partition in partitions.values()),
                config={entry.name: str(entry.value) for entry in entries.values()},
                own_settings=frozenset(entry.name for entry in entries.values() if _is_own(entry)),
            )
        return found

    def apply(self, declared: Iterable[TopicDeclaration], accepted: Iterable[Difference]) -> None:
        """Make away with the accepted differences; any that cannot be applied here must not be among them."""
        declarations = {declaration.name: declaration for declaration in declared}
        created: list[str] = []
        for difference in accepted:
            declaration = declarations[difference.topic]
            if difference.remedy in (Remedy.by_hand, Remedy.keep):
                raise ValueError(f"{difference.topic}: {difference.aspect} cannot be applied")
            if difference.actual is None:
                self._create(declaration)
                created.append(declaration.name)
            elif difference.aspect == "partitions":
                self._set_partitions(declaration)
            else:
                self._set(declaration.name, {difference.aspect: difference.declared})
        self._wait_for(created)

    def _wait_for(self, names: Sequence[str]) -> None:
        """A created topic is known to every broker a moment later; who comes after us may ask any of them."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while missing := names and set(names) - self.describe(names).keys():
            if time.monotonic() >= deadline:
                raise TopicsError(f"created, but not to be seen yet: {', '.join(sorted(missing))}")
            time.sleep(POLL_SECONDS)

    def _create(self, declaration: TopicDeclaration) -> None:
        topic = NewTopic(
            declaration.name,
            num_partitions=declaration.partitions,
            replication_factor=declaration.replication_factor,
            config=declaration.config,
        )
        futures = self._client.create_topics([topic], **_deadlines())
        _result(
            futures[declaration.name],
            f"topic {declaration.name} cannot be created",
            # Another caller was quicker.
            tolerate=KafkaError.TOPIC_ALREADY_EXISTS,
        )

    def _set_partitions(self, declaration: TopicDeclaration) -> None:
        request = NewPartitions(declaration.name, declaration.partitions)
        futures = self._client.create_partitions([request], **_deadlines())
        _result(futures[declaration.name], f"topic {declaration.name} cannot get more partitions")

    def _set(self, name: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self._client.incremental_alter_configs([resource], request_timeout=DEADLINE_SECONDS)
        _result(futures[resource], f"topic {name} cannot be altered")

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error


def _is_own(entry: ConfigEntry) -> bool:
    """Whether the value is set on the topic itself. The client gives the source as a number."""
    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


def _deadlines() -> dict[str, float]:
    return {"operation_timeout": DEADLINE_SECONDS, "request_timeout": DEADLINE_SECONDS}


def _result(future: Future[Any], what: str, tolerate: int | None = None) -> Any:
    """The future's result in time. Raises TopicsError that begins with ``what``."""
    try:
        return future.result(timeout=DEADLINE_SECONDS + 1)
    except KafkaException as exception:
        error: KafkaError = exception.args[0]
        if error.code() == tolerate:
            return None
        raise TopicsError(f"{what}: {' '.join(error.str().split())}") from None
    except TimeoutError:
        raise TopicsError(f"{what}: Kafka did not answer within {DEADLINE_SECONDS:.0f} s") from None
