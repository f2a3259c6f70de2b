"""Groups and logs of one cluster, through Kafka's admin protocol. Every call has a deadline, and every error a line.

Kafka answers some questions about groups with "not yet" while a coordinator loads, or while a transaction that commits
offsets is open. Those are asked again until the deadline; all other errors are final.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public, but not declared so

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.group_standing import UNKNOWN, GroupStanding, Member
from pipeline.offsets.places import Bounds, Place
from topics.security import KafkaConnection

DEADLINE_SECONDS: Final = 20.0
REQUEST_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.1
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NOT_YET: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


class KafkaGroups:
    """Reads and moves the committed offsets of groups. Methods raise OffsetsError."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._addresses = connection.bootstrap_servers
        self._last_error: KafkaError | None = None
        configuration: dict[str, Any] = {
            **connection.librdkafka(),
            "socket.connection.setup.timeout.ms": 5_000,
            "log_level": 0,
            "error_cb": self._on_error,
        }
        self._client = AdminClient(configuration)

    def cluster_id(self) -> str:
        """Also the first call of every command: raises where no broker answers."""
        return str(self._metadata().cluster_id)

    def standing(self, group: str) -> GroupStanding:
        """The group's state and members. A group that the broker does not know is one without members."""
        found = self._ask(
            lambda: self._client.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS)[group],
            f"group {group} cannot be described",
            tolerate=KafkaError.GROUP_ID_NOT_FOUND,
        )
        if found is None or found.state.name == "DEAD":
            return GroupStanding(group, UNKNOWN)
        members = tuple(
            Member(
                client_id=member.client_id,
                host=member.host,
                instance_id=member.group_instance_id,
                partitions=tuple(sorted(Place(tp.topic, tp.partition) for tp in member.assignment.topic_partitions)),
            )
            for member in found.members
        )
        return GroupStanding(group, found.state.name.lower().replace("_", " "), members)

    def committed(self, group: str, places: Iterable[Place] = ()) -> dict[Place, int]:
        """Every offset that the group has committed. Waits for transactions that are about to commit some.

        Where such a transaction is the first to commit for a partition, Kafka leaves the partition out of the list of
        all: `places` are asked for by name, so that these wait too.
        """
        asked = [TopicPartition(place.topic, place.partition) for place in places]
        return self._committed(group, None) | (self._committed(group, asked) if asked else {})

    def _committed(self, group: str, asked: list[TopicPartition] | None) -> dict[Place, int]:
        answer = self._ask(
            lambda: self._client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, asked)], require_stable=True, request_timeout=REQUEST_SECONDS
            )[group],
            f"offsets of group {group} cannot be read",
            parts=lambda found: found.topic_partitions,
        )
        return {Place(tp.topic, tp.partition): tp.offset for tp in answer.topic_partitions or () if tp.offset >= 0}

    def partitions(self, topics: Iterable[str]) -> list[Place]:
        """All partitions of these topics, in order. Raises for one that does not exist."""
        wanted = set(topics)
        known = self._topics()
        if missing := sorted(wanted - known.keys()):
            raise OffsetsError(f"no topic {', '.join(missing)}")
        return sorted(Place(topic, number) for topic in wanted for number in known[topic])

    def existing(self, places: Iterable[Place]) -> set[Place]:
        """Those of them whose topic and partition are there: commits outlive topics."""
        known = self._topics()
        return {place for place in places if place.partition in known.get(place.topic, ())}

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        """Both ends of each partition's log. All of them must exist."""
        starts = self._list_offsets(places, _EARLIEST)
        # In this order, so that no end lies before a stable end that was asked for earlier.
        stable_ends = self._list_offsets(places, _LATEST, IsolationLevel.READ_COMMITTED)
        ends = self._list_offsets(places, _LATEST)
        return {place: Bounds(starts[place], ends[place], stable_ends[place]) for place in places}

    def offsets_at(self, places: Sequence[Place], moment: datetime) -> dict[Place, int | None]:
        """The first message in each that is not older; None where there is none."""
        spec = OffsetSpec.for_timestamp(max(0, int(moment.timestamp() * 1000)))
        found = self._list_offsets(places, spec)
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def alter(self, group: str, offsets: Mapping[Place, int]) -> dict[Place, str]:
        """Commit these offsets for one group; returns what the broker refused, by partition.

        The broker refuses while the group has members, and says so only in each partition's answer. It takes any
        offset, also one outside the log: the bounds are the caller's to check.
        """
        wanted = [TopicPartition(place.topic, place.partition, offset) for place, offset in offsets.items()]
        # One group a call: the protocol has no more.
        answer = self._ask(
            lambda: self._client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=REQUEST_SECONDS
            )[group],
            f"offsets of group {group} cannot be altered",
        )
        return {
            Place(tp.topic, tp.partition): _line(tp.error) for tp in answer.topic_partitions if tp.error is not None
        }

    def forget(self, group: str) -> None:
        """Delete an inactive group with all that it has committed."""
        self._ask(
            lambda: self._client.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS)[group],
            f"group {group} cannot be deleted",
            tolerate=KafkaError.GROUP_ID_NOT_FOUND,
        )

    def _topics(self) -> dict[str, list[int]]:
        """Partitions by topic, of those that can be asked now."""
        topics = self._metadata().topics
        return {name: list(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def _metadata(self) -> Any:
        try:
            return self._client.list_topics(timeout=REQUEST_SECONDS)
        except KafkaException as exception:
            cause: KafkaError = self._last_error or exception.args[0]
            raise OffsetsError(
                f"Kafka does not answer at {self._addresses}: {cause.str()}; "
                "check OUTRIDER_KAFKA_BOOTSTRAP_SERVERS, and that the broker runs"
            ) from None

    def _list_offsets(
        self, places: Sequence[Place], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[Place, int]:
        if not places:
            return {}
        partitions = {place: TopicPartition(place.topic, place.partition) for place in places}
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            futures = self._client.list_offsets(
                dict.fromkeys(partitions.values(), spec), isolation_level=isolation, request_timeout=REQUEST_SECONDS
            )
            try:
                return {place: _result(futures[partition]).offset for place, partition in partitions.items()}
            except KafkaException as exception:
                _raise_unless_not_yet(exception.args[0], deadline, "the logs' ends cannot be read")

    def _ask(
        self,
        question: Callable[[], Future[Any]],
        what: str,
        *,
        tolerate: int | None = None,
        parts: Callable[[Any], Sequence[TopicPartition] | None] = lambda answer: None,
    ) -> Any:
        """The answer, or None for the tolerated error. An error in one of its parts is one of the whole."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                answer = _result(question())
                for part in parts(answer) or ():
                    if part.error is not None:
                        raise KafkaException(part.error)
                return answer
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.code() == tolerate:
                    return None
                _raise_unless_not_yet(error, deadline, what)

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=REQUEST_SECONDS + 1)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def _raise_unless_not_yet(error: KafkaError, deadline: float, what: str) -> None:
    """Raises OffsetsError; returns after a moment where the same question may be answered soon."""
    if error.code() not in _NOT_YET or time.monotonic() >= deadline:
        raise OffsetsError(f"{what}: {_line(error)}") from None
    time.sleep(RETRY_SECONDS)


def _line(error: KafkaError) -> str:
    return " ".join(error.str().split()) or error.name()
