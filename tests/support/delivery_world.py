"""A test's own world for the delivery worker: ledger, topics, receivers, and a stand-in for the connector.

Messages are published from the outbox by hand, in transactions as the connector does, so that a test decides
what is published when, in which order, and how often.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.contracts import assert_fits
from topics.declarations import declare_topics

DEADLINE_SECONDS = 60.0
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came in. ``headers`` by lower-case name."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def delivery_id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the receiver answers; status None drops the connection without an answer."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Receiver:
    """Records every request, and answers what ``reply`` says (which may block)."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.reply: Callable[[Received], Reply] = lambda received: Reply()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                received = Received(self.path, headers, body)
                receiver.received.append(received)
                reply = receiver.reply(received)
                if reply.status is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a worker that is killed leaves broken connections

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class World:
    """Ledger and topics of one test."""

    def __init__(self, postgres_dsn: str, bootstrap_servers: str, topic_prefix: str, receiver: Receiver) -> None:
        self.ledger = psycopg.connect(postgres_dsn, autocommit=True)
        self.receiver = receiver
        self.dispatch = f"{topic_prefix}.dispatch"
        self.quarantine = f"{topic_prefix}.quarantine"
        self.group = f"{topic_prefix}.delivery"
        self._bootstrap_servers = bootstrap_servers
        self._published_to = 0
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        declared = declare_topics(
            prefix=topic_prefix,
            dispatch_partitions=PARTITIONS,
            attempts_partitions=PARTITIONS,
            replication_factor=1,
            min_insync_replicas=1,
        )
        for creation in admin.create_topics(
            [NewTopic(t.name, t.partitions, 1, config=t.config) for t in declared]
        ).values():
            creation.result(30)
        self.producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "transactional.id": f"{topic_prefix}.test", "log_level": 0}
        )
        self.producer.init_transactions(60)
        self._observer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": self.group, "log_level": 0})

    def close(self) -> None:
        self._observer.close()
        self.ledger.close()

    def add_destination(self, destination_id: str, **settings: object) -> str:
        """A destination at the test's receiver, generous unless ``settings`` say otherwise; returns its secret."""
        values: dict[str, object] = {
            "destination_id": destination_id,
            "url": f"{self.receiver.url}/{destination_id}",
            "allowed_networks": ["127.0.0.0/8"],
            "start_rate_per_second": 10_000,
            "burst": 10_000,
            "concurrency": 64,
            **settings,
        }
        columns = ", ".join(values)
        places = ", ".join(["%s"] * len(values))
        self.ledger.execute(
            f"insert into outrider.destination ({columns}) values ({places})",  # type: ignore[arg-type]
            list(values.values()),
        )
        secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        self.ledger.execute(
            "insert into outrider.destination_secret (destination_id, secret) values (%s, %s)", (destination_id, secret)
        )
        return secret

    def admit(self, event_id: str, *destination_ids: str, payload: bytes = b"{}", **more: Any) -> list[str]:
        """Admit one event; the delivery ids."""
        rows = self.ledger.execute(
            "select delivery_id from outrider.admit(%s, %s, %s, %s, %s, null, %s)",
            (
                event_id,
                more.get("event_type", "test.happened"),
                payload,
                more.get("content_type", "application/json"),
                list(destination_ids),
                psycopg.types.json.Jsonb(more.get("headers", {})),
            ),
        ).fetchall()
        return [row[0] for row in rows]

    def publish(self) -> int:
        """Publish what the outbox has that was not published yet; how many."""
        rows = self._outbox(self._published_to)
        if rows:
            self._published_to = rows[-1][0]
            self.publish_rows(rows)
        return len(rows)

    def publish_ahead(self, session: psycopg.Connection) -> None:
        """Publish what only ``session`` sees yet, as the stream does when it overtakes the visibility of a commit."""
        rows = self._outbox(self._published_to, session)
        self._published_to = rows[-1][0]
        self.publish_rows(rows)

    def publish_again(self) -> None:
        """Publish every row of the outbox once more, as after a reset to the beginning."""
        self.publish_rows(self._outbox(0))

    def publish_rows(self, rows: list[tuple[Any, ...]]) -> None:
        self.producer.begin_transaction()
        for _, message_id, delivery_id, dispatch_seq, destination_id, payload, reason in rows:
            self.producer.produce(
                self.dispatch,
                key=destination_id.encode(),
                value=payload,
                headers={
                    "id": message_id,
                    "delivery_id": delivery_id,
                    "dispatch_seq": str(dispatch_seq),
                    "reason": reason,
                },
            )
            self.producer.poll(0)
        self.producer.commit_transaction(30)

    def _outbox(self, after: int, session: psycopg.Connection | None = None) -> list[tuple[Any, ...]]:
        return (
            (session or self.ledger)
            .execute(
                "select outbox_id, message_id::text, delivery_id, dispatch_seq, destination_id, payload, reason "
                "from outrider.dispatch_outbox where outbox_id > %s order by outbox_id",
                (after,),
            )
            .fetchall()
        )

    def redispatch_due(self) -> int:
        """Stand-in for the reconciler: enqueue every pending row, due or not, and publish it."""
        self.enqueue_pending(self.ledger)
        return self.publish()

    def enqueue_pending(self, session: psycopg.Connection) -> None:
        session.execute(
            """
            with moved as (
              update outrider.delivery set state = 'enqueued', dispatch_seq = dispatch_seq + 1, next_attempt_at = null,
                     lost_after = now() + interval '1 hour', waiting_reason = null
              where state = 'pending' returning *
            )
            insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id,
                                                  event_type, content_type, headers, payload, reason)
            select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq,
                   m.destination_id, e.event_id, e.event_type, e.content_type, e.headers, e.payload, 'due'
            from moved m join outrider.event e using (event_id)
            """
        )

    def states(self) -> dict[str, int]:
        """Deliveries by state."""
        return dict(self.ledger.execute("select state, count(*) from outrider.delivery group by 1").fetchall())

    def delivery(self, delivery_id: str) -> dict[str, Any]:
        return self._row("select * from outrider.delivery where delivery_id = %s", delivery_id)[0]

    def attempts(self, delivery_id: str) -> list[dict[str, Any]]:
        """The attempt log of a delivery, oldest first."""
        return self._row(
            "select * from outrider.delivery_attempt where delivery_id = %s order by attempt_id", delivery_id
        )

    def _row(self, query: str, *parameters: object) -> list[dict[str, Any]]:
        cursor = self.ledger.cursor(row_factory=psycopg.rows.dict_row)
        return cursor.execute(query, parameters).fetchall()  # type: ignore[arg-type]

    def committed(self) -> dict[int, int]:
        """The group's committed offset by partition, 0 where there is none."""
        partitions = [TopicPartition(self.dispatch, number) for number in range(PARTITIONS)]
        return {tp.partition: max(tp.offset, 0) for tp in self._observer.committed(partitions, timeout=30)}

    def ends(self) -> dict[int, int]:
        """Offset after the last record or marker, by partition."""
        return {
            number: self._observer.get_watermark_offsets(TopicPartition(self.dispatch, number), timeout=30)[1]
            for number in range(PARTITIONS)
        }

    def records(self, topic: str) -> list[Any]:
        """Every committed record of a topic, each as the contract says."""
        reader = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "reads-only",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        numbers = list(reader.list_topics(topic, 30).topics[topic].partitions)
        reader.assign([TopicPartition(topic, number, 0) for number in numbers])
        found, ended = [], 0
        while ended < len(numbers):
            message = reader.poll(DEADLINE_SECONDS)
            assert message is not None, f"{topic} cannot be read to its end"
            if message.error():
                ended += 1
            else:
                assert_fits(topic, message.key(), message.value(), message.headers())
                found.append(message)
        reader.close()
        return found


@contextmanager
def opened(postgres_dsn: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    """A world with one receiver, both closed at the end."""
    receiver = Receiver()
    world = World(postgres_dsn, bootstrap_servers, topic_prefix, receiver)
    try:
        yield world
    finally:
        world.close()
        receiver.close()


def wait_until(condition: Callable[[], object], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until it holds; fail with ``what`` was awaited."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
