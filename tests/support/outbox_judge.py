"""Whether the topics hold what the tables hold: each committed row once, no other, and the order of each key.

The tables say what was committed and in which order (see :mod:`tests.support.outbox_load`); a read_committed reader
says what was published. The reader goes on where it stopped, so judging often costs no more than judging once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.connector_world import ConnectorWorld
from tests.support.outbox_load import Known

READ_SECONDS = 60.0
CATCH_UP_SECONDS = 120.0
POLL_SECONDS = 0.1
EXAMPLES = 3

# Part of the topic's name -> (id, key) of each row in the order of writing. The id is the header "id" of its record.
# Qualified in "order by", because the bare name would be the text that is selected.
TABLES = {
    "dispatch": "select message_id::text, destination_id from outrider.dispatch_outbox order by dispatch_outbox.outbox_id",
    "attempts": "select attempt_id::text, destination_id from outrider.delivery_attempt order by delivery_attempt.attempt_id",
}

ByKey = dict[str, list[str]]
TopicAndPartition = tuple[str, int]


@dataclass(slots=True)
class Verdict:
    """``faults`` says what is wrong, a line for each kind, and is empty where all holds."""

    committed: int = 0
    published: int = 0
    rolled_back: int = 0
    keys: int = 0
    faults: list[str] = field(default_factory=list)


def compare(part: str, committed: Mapping[str, list[str]], published: Mapping[str, list[str]]) -> list[str]:
    """What tells the two apart, in words: missing, repeated, unknown and reordered ids, with a few of them."""
    count = Counter(identity for ids in published.values() for identity in ids)
    wanted = {identity for ids in committed.values() for identity in ids}
    faults = [
        _fault(f"{part}: missing", wanted - count.keys()),
        _fault(f"{part}: repeated", (identity for identity, times in count.items() if times > 1)),
        _fault(f"{part}: not committed", count.keys() - wanted),
    ]
    # Judged apart from the faults above: the order of what both sides have, each at its first place.
    for key in sorted(committed.keys() | published.keys()):
        theirs = list(dict.fromkeys(published.get(key, [])))
        ours = committed.get(key, [])
        common = set(ours) & set(theirs)
        if [identity for identity in ours if identity in common] != [one for one in theirs if one in common]:
            faults.append(f"{part}: the order of {key!r} is not kept")
        if strays := {one for one in theirs if one in wanted and one not in common}:
            faults.append(_fault(f"{part}: under the wrong key {key!r}", strays))
    return [fault for fault in faults if fault]


def _fault(what: str, ids: Iterable[str]) -> str:
    found = sorted(ids)
    return f"{what}: {len(found)}, such as {', '.join(found[:EXAMPLES])}" if found else ""


class OutboxJudge:
    """Reads the topics of one world, from their beginning."""

    def __init__(self, world: ConnectorWorld) -> None:
        self._bootstrap_servers = world.settings.kafka_bootstrap_servers
        self._parts = {world.settings.name(part): part for part in (*TABLES, "quarantine")}
        self._offsets: dict[tuple[str, int], int] = {}
        self._published: dict[str, ByKey] = {part: {} for part in TABLES}
        self._quarantined: list[str] = []

    def read(self) -> None:
        """Take in what was committed to the topics since the last call, to their present ends."""
        with self._reader() as (consumer, partitions):
            deadline = time.monotonic() + READ_SECONDS
            ahead = partitions
            while ahead:
                assert time.monotonic() < deadline, f"partitions {ahead} do not come to an end"
                ahead = ahead - self._take(consumer)

    def wait_until_published(
        self,
        connection: psycopg.Connection,
        goes_on: Callable[[], bool] = lambda: True,
        *,
        aside: int = 0,
        seconds: float = CATCH_UP_SECONDS,
    ) -> None:
        """Return once as many rows are published as the tables hold now, less those dispatches that are put ``aside``.

        It gives up quietly after the deadline, or when it does not go on: the verdict says what is wrong, better than a
        deadline could.
        """
        wanted = {part: _count_rows(connection, query) for part, query in TABLES.items()}
        wanted["dispatch"] -= aside
        deadline = time.monotonic() + seconds
        with self._reader() as (consumer, _):
            while any(self._count(part) < rows for part, rows in wanted.items()):
                if time.monotonic() >= deadline or not goes_on():
                    return
                self._take(consumer)

    def verdict(
        self, connection: psycopg.Connection, known: Known, *, quarantined: frozenset[str] = frozenset()
    ) -> Verdict:
        """Call it once nothing publishes any more, so that what comes too late or twice is seen.

        Dispatches that are to lie in quarantine, once, and nowhere else, are ``quarantined``.
        """
        self.read()
        verdict = Verdict(rolled_back=len(known.rolled_back))
        for part, query in TABLES.items():
            committed: ByKey = {}
            in_table: set[str] = set()
            for identity, key in connection.execute(query):
                in_table.add(identity)
                if identity not in quarantined:
                    committed.setdefault(key, []).append(identity)
            if part == "dispatch":
                # Without these the table itself would be no witness.
                verdict.faults += filter(None, [_fault("the table lost", known.committed - in_table)])
                verdict.faults += filter(None, [_fault("the table kept", known.rolled_back & in_table)])
            verdict.faults += compare(part, committed, self._published[part])
            verdict.committed += len(in_table)
            verdict.published += self._count(part)
            verdict.keys = max(verdict.keys, len(committed))
        verdict.faults += self._held_back()
        if sorted(self._quarantined) != sorted(quarantined):
            verdict.faults.append(_fault("quarantine", self._quarantined) or "quarantine: empty")
        return verdict

    def _held_back(self) -> list[str]:
        """Partitions whose end read_committed readers cannot reach, because a transaction stays open."""
        with self._reader() as (_, partitions):
            places = [TopicPartition(*place) for place in sorted(partitions)]
        admin = AdminClient({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})
        ends = []
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            futures = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()), isolation_level=level)
            ends.append({place: future.result(READ_SECONDS).offset for place, future in futures.items()})
        return [
            f"{place.topic}[{place.partition}]: a transaction is open from {ends[0][place]} to {ends[1][place]}"
            for place in places
            if ends[0][place] != ends[1][place]
        ]

    def _count(self, part: str) -> int:
        return sum(map(len, self._published[part].values()))

    @contextmanager
    def _reader(self) -> Iterator[tuple[Consumer, set[TopicAndPartition]]]:
        """A read_committed consumer that stands where the last one stopped, and its partitions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "test-judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # Without it a reader whose offset the broker does not know any more would go to the end, silently.
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        try:
            partitions = {(topic, partition) for topic in self._parts for partition in _partitions(consumer, topic)}
            consumer.assign(
                [TopicPartition(*partition, self._offsets.get(partition, 0)) for partition in sorted(partitions)]
            )
            yield consumer, partitions
        finally:
            consumer.close()

    def _take(self, consumer: Consumer) -> set[TopicAndPartition]:
        """Take in what has arrived, waiting a moment; the partitions whose end was met."""
        ended: set[TopicAndPartition] = set()
        for message in consumer.consume(1000, POLL_SECONDS):
            place = message.topic() or "", message.partition() or 0
            error = message.error()
            if error is None:
                self._offsets[place] = (message.offset() or 0) + 1
                self._keep(self._parts[place[0]], message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
            elif not error.retriable():
                raise KafkaException(error)
        return ended

    def _keep(self, part: str, message: Message) -> None:
        key, identity = message.key(), dict(message.headers() or [])["id"]
        assert isinstance(key, bytes)
        assert isinstance(identity, bytes)
        if part not in self._published:
            self._quarantined.append(identity.decode())
            return
        self._published[part].setdefault(key.decode(), []).append(identity.decode())


def _count_rows(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(f"select count(*) from ({query}) as written").fetchone()
    assert row is not None
    return int(row[0])


def _partitions(consumer: Consumer, topic: str) -> Iterable[int]:
    """The topic's partitions; a broker that is just coming back is waited for."""
    deadline = time.monotonic() + READ_SECONDS
    while True:
        try:
            return list(consumer.list_topics(topic, timeout=5.0).topics[topic].partitions)
        except KafkaException:
            if time.monotonic() >= deadline:
                raise
