"""The consumer group ``audit``: messages into the audit's table, and only then their offsets.

A message may be read again after a crash or a rebalance; its place in the log is its key, so that changes nothing.
Where Kafka or PostgreSQL is lost, both sides are closed and opened anew, and reading goes on behind the last commit.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from pipeline.audit.client_messages import message_of
from pipeline.audit.metrics import BEHIND_SECONDS, DEFECTS, MESSAGES, REPEATED
from pipeline.audit.records import Reader, read_attempt, read_damaged, read_dispatch
from pipeline.ledger.audit import AuditRecord, ensure_audit_partitions, record_messages
from pipeline.settings import Settings
from topics.declarations import ATTEMPTS, DISPATCH

BATCH_ROWS = 500
POLL_SECONDS = 0.25
# Bounds of what the client holds ahead. Small messages take several times their bytes there.
QUEUED_KILOBYTES = 16_384
QUEUED_MESSAGES = 10_000
FETCH_BYTES = 8 * 1024 * 1024
SESSION_TIMEOUT_MS = 10_000
METADATA_SECONDS = 5.0
STATEMENT_TIMEOUT_SECONDS = 30
# What may still lie in a topic that nobody has recorded yet, and the days to come.
DAYS_BACK = 31
DAYS_AHEAD = 14
PARTITIONS_SECONDS = 3_600.0
PARTITIONS_RETRY_SECONDS = 60.0
RETRY_FIRST_SECONDS = 0.5
RETRY_LONGEST_SECONDS = 15.0

# Another member has the partitions by now; what we recorded it records again.
_GENERATION_IS_OVER = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS}
)

_log = structlog.get_logger(__name__)


class MissingTopicError(Exception):
    """A topic of the group does not exist; the message names it."""


class AuditGroup:
    """One member of the group. ``run`` blocks; ``stop`` and ``ready`` may be called from another thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: dict[str, Reader] = {
            settings.name(DISPATCH): read_dispatch,
            settings.name(ATTEMPTS): read_attempt,
        }
        self._stopping = threading.Event()
        self._trouble = "not connected yet"
        self._client_error = ""

    def stop(self) -> None:
        """End after the batch at hand."""
        self._stopping.set()

    def ready(self) -> tuple[bool, str]:
        return (False, self._trouble) if self._trouble else (True, "recording")

    def run(self) -> None:
        """Record until ``stop``. Raises MissingTopicError, and psycopg.Error where the schema or a right is missing."""
        failures = 0
        while not self._stopping.is_set():
            try:
                with self._opened() as session:
                    failures = 0
                    self._trouble = ""
                    while not self._stopping.is_set():
                        session.step()
                    session.flush()
            except (psycopg.OperationalError, KafkaException) as error:
                failures += 1
                self._trouble = self._describe(error)
                pause_seconds = min(RETRY_LONGEST_SECONDS, RETRY_FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
                pause_seconds *= random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing
                setting = (
                    "OUTRIDER_POSTGRES_DSN" if isinstance(error, psycopg.Error) else "OUTRIDER_KAFKA_BOOTSTRAP_SERVERS"
                )
                _log.warning("audit interrupted, trying again", error=self._trouble, check=setting, failures=failures)
                self._stopping.wait(pause_seconds)
        _log.info("audit ended")

    def _describe(self, error: psycopg.OperationalError | KafkaException) -> str:
        """One line. What a call to Kafka raises says little; the client's last own word says why."""
        if isinstance(error, psycopg.Error):
            return " ".join(str(error).split())
        return "; ".join(dict.fromkeys(text for text in (error.args[0].str(), self._client_error) if text))

    def _on_client_error(self, error: KafkaError) -> None:
        self._client_error = error.str()

    @contextmanager
    def _opened(self) -> Iterator[_Session]:
        with psycopg.connect(
            self._settings.postgres_conninfo, autocommit=True, application_name="outrider audit", keepalives_idle=30
        ) as connection:
            connection.execute(f"set statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'")
            consumer = Consumer(
                {
                    **self._settings.kafka.librdkafka(),
                    "group.id": self._settings.name("audit"),
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "session.timeout.ms": SESSION_TIMEOUT_MS,
                    "queued.max.messages.kbytes": QUEUED_KILOBYTES,
                    "fetch.queue.backoff.ms": 5,  # else a client whose room is full asks again only a second later
                    "queued.min.messages": QUEUED_MESSAGES,
                    "fetch.max.bytes": FETCH_BYTES,
                    # Its own lines repeat themselves many times a second while a broker is away.
                    "log_level": 0,
                    "error_cb": self._on_client_error,
                }
            )
            try:
                self._check_topics(consumer)
                connection.execute("set timezone = 'UTC'")
                session = _Session(consumer, connection, self._readers)
                consumer.subscribe(list(self._readers), on_revoke=lambda *_: session.flush(), on_lost=session.forget)
                yield session
            finally:
                consumer.close()

    def _check_topics(self, consumer: Consumer) -> None:
        """A consumer waits for a topic for ever; whoever forgot to make it should hear of it."""
        for name in self._readers:
            found = consumer.list_topics(name, timeout=METADATA_SECONDS).topics.get(name)
            if found is None or found.error is not None:
                raise MissingTopicError(name)


class _Session:
    """A consumer, a database session, and what was read and is not committed yet: at most BATCH_ROWS."""

    def __init__(self, consumer: Consumer, connection: psycopg.Connection, readers: dict[str, Reader]) -> None:
        self._consumer = consumer
        self._connection = connection
        self._readers = readers
        self._records: list[AuditRecord] = []
        self._partitions_due_at = 0.0  # on time.monotonic()

    def step(self) -> None:
        """Take one message; write the batch where it is full, or where nothing more has come yet."""
        if time.monotonic() >= self._partitions_due_at:
            self._keep_partitions()
        message = self._consumer.poll(0.0 if self._records else POLL_SECONDS)
        if message is not None:
            self._take(message)
        if len(self._records) >= BATCH_ROWS or message is None:
            self.flush()

    def flush(self) -> None:
        """Rows first, then offsets: a crash between them repeats rows, and that changes nothing."""
        if not self._records:
            BEHIND_SECONDS.set(0)
            return
        for chain in record_messages(self._connection, self._records):
            REPEATED.inc(chain.repeated)
            if chain.is_anchor:
                # Where lines are kept that nobody here can change, each is proof of all that was recorded before.
                _log.info(
                    "audit anchor",
                    topic=chain.topic,
                    partition=chain.partition,
                    chain_seq=chain.chain_seq,
                    hash=chain.hash.hex(),
                )
        places = {(record.topic, record.partition): record.log_offset + 1 for record in self._records}
        BEHIND_SECONDS.set(max(0.0, time.time() - self._records[-1].logged_at.timestamp()))
        self._records = []
        self._commit([TopicPartition(topic, partition, offset) for (topic, partition), offset in places.items()])

    def _keep_partitions(self) -> None:
        """Days ahead, so that rows have their day's table when they come."""
        made = ensure_audit_partitions(self._connection, days_back=DAYS_BACK, days_ahead=DAYS_AHEAD)
        self._partitions_due_at = time.monotonic() + (PARTITIONS_RETRY_SECONDS if made else PARTITIONS_SECONDS)
        if made:
            _log.info("audit partitions made", first=made[0], last=made[-1], days=len(made))

    def forget(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The partitions are another member's already, which reads from the last commit."""
        self._records = []

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if error is not None:
            if not error.retriable():
                raise KafkaException(error)
            return
        record = self._read(message)
        self._records.append(record)
        MESSAGES.labels(record.topic).inc()
        if record.defect is not None:
            DEFECTS.labels(record.topic).inc()
            _log.warning(
                "message not understood",
                topic=record.topic,
                partition=record.partition,
                offset=record.log_offset,
                defect=record.defect,
            )

    def _read(self, message: KafkaMessage) -> AuditRecord:
        """Nothing that a message holds may end the audit: each would come again after the restart."""
        plain, defect = message_of(message)
        if defect is not None:
            return read_damaged(plain, defect)
        try:
            return self._readers[plain.topic](plain)
        except Exception as error:
            _log.exception(
                "message met a defect of its reader", topic=plain.topic, partition=plain.partition, offset=plain.offset
            )
            return read_damaged(plain, f"reader: {error!r}")

    def _commit(self, offsets: list[TopicPartition]) -> None:
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _GENERATION_IS_OVER:
                raise
            _log.info("offsets not committed, another member goes on", error=str(error.args[0]))
