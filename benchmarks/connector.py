"""The connector against what bounds it: the same rows through each half of its work alone, in one run.

``make bench NAME=connector ARGS="--rows 100000 --json"`` starts its own Kafka and PostgreSQL, then measures

- a bare reader: the replication stream of the same rows, thrown away;
- a bare producer: the same records in transactions of the same size, out of memory;
- the connector, as a process of its own, over the same backlog;
- SIGKILL of the connector until it publishes again;
- commit to read_committed reader, at 200 rows/s.

Nothing that does the work of both can be faster than the slower half unless it overlaps them; the ratio to that
half is the figure that can be compared between machines.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.report import Goal, machine, show
from connectors.postgres.framing import XLOG_HEADER_BYTES
from connectors.postgres.replication import ReplicationConnection
from pipeline.ledger.migrate import migrate_up
from pipeline.settings import Settings, load_settings
from pipeline.stack.child_process import ChildProcess
from pipeline.stack.component import component_process
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.ports import free_ports
from topics.admin import TopicAdmin
from topics.declarations import declare_topics
from topics.difference import differences

DEADLINE_SECONDS = 600.0
PAYLOAD_BYTES = 400
TRANSACTION_ROWS = 1_000
LATENCY_ROWS = 1_000
LATENCY_ROWS_PER_SECOND = 200
BARE_SLOT = "bare_reader"

INSERT = """
insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type,
                                      content_type, headers, payload, reason)
select gen_random_uuid(), 'delivery-' || n, 1, 'destination-' || n %% 16, 'event-' || n, 'media.processed',
       'application/json', '{}', convert_to(rpad(md5(n::text), %(payload)s, md5((n * 7)::text)), 'UTF8'), 'admitted'
from generate_series(1, %(rows)s) n
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process since its start."""

    cpu_seconds: float
    rss_mib_max: float


class Bench:
    """One stack, one database, and the connector under test."""

    def __init__(self, stack: EmbeddedStack, folder: Path) -> None:
        (self._health_port,) = free_ports(1)
        self._values: dict[str, object] = {
            "postgres_dsn": stack.postgres_dsn,
            "kafka_bootstrap_servers": stack.bootstrap_servers,
            "topic_replication_factor": 1,
            "topic_min_insync_replicas": 1,
            "dispatch_partitions": 4,
            "attempts_partitions": 4,
            "connector_slot": "bench",
            "health_port": self._health_port,
        }
        self.settings: Settings = load_settings(**self._values)
        self.connection = psycopg.connect(stack.postgres_dsn, autocommit=True)
        self.connector: ChildProcess = component_process(
            "connector", self._values, name="connector", log=folder / "connector.log"
        )

    def prepare(self) -> None:
        migrate_up(self.settings.postgres_conninfo)
        declared = declare_topics(
            prefix=self.settings.topic_prefix,
            dispatch_partitions=4,
            attempts_partitions=4,
            replication_factor=1,
            min_insync_replicas=1,
        )
        TopicAdmin(self.settings.kafka).apply(declared, differences(declared, {}))
        # The connector's slot is made by its first start, before the rows: what follows is streamed.
        self.connector.start()
        self.wait(lambda: self.metric("ready") == 1)
        self.connector.terminate(30)
        self.connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [BARE_SLOT])

    def insert(self, rows: int) -> None:
        """Commit so many rows, a thousand at a time."""
        for first in range(0, rows, TRANSACTION_ROWS):
            count = min(TRANSACTION_ROWS, rows - first)
            self.connection.execute(INSERT, {"payload": PAYLOAD_BYTES, "rows": count})

    # --- the halves ---------------------------------------------------------------------

    def bare_reader(self, rows: int) -> float:
        """Rows/s of the stream alone."""
        replication = ReplicationConnection(self.settings.postgres_conninfo)
        stream = replication.start(BARE_SLOT, self.settings.connector_publication, from_lsn=0, binary=True)
        read, begun = 0, 0.0
        while read < rows:
            data = stream.next_buffered()
            if data is None:
                stream.wait(1.0)
            elif data[XLOG_HEADER_BYTES] == ord("I"):
                begun = begun or time.monotonic()
                read += 1
        elapsed = time.monotonic() - begun
        stream.close()
        self.wait(lambda: not self._slot_is_active(BARE_SLOT))
        self.connection.execute("select pg_drop_replication_slot(%s)", [BARE_SLOT])
        return rows / elapsed

    def bare_producer(self, rows: int) -> float:
        """Rows/s of transactions alone, with the same sizes and settings."""
        producer = Producer(
            {
                **self.settings.kafka.librdkafka(),
                "transactional.id": "bare",
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "batch.size": 256 * 1024,
                "linger.ms": 5,
                "delivery.report.only.error": True,
            }
        )
        producer.init_transactions(60)
        topic = self.settings.name("dispatch")
        names = ("id", "delivery_id", "dispatch_seq", "event_id", "event_type", "content_type", "reason")
        headers: list[tuple[str, str | bytes | None]] = [(name, b"0123456789abcdef") for name in names]
        values = [os.urandom(PAYLOAD_BYTES // 2).hex().encode() for _ in range(1000)]
        begun = time.monotonic()
        for first in range(0, rows, self.settings.connector_transaction_rows):
            producer.begin_transaction()
            for row in range(first, min(rows, first + self.settings.connector_transaction_rows)):
                producer.produce(topic, values[row % 1000], b"destination-%d" % (row % 16), headers=headers)
            producer.commit_transaction(60)
        return rows / (time.monotonic() - begun)

    # --- the connector ------------------------------------------------------------------

    def drain(self, rows: int) -> tuple[float, Usage]:
        """Rows/s of the connector over the waiting rows, from its first committed one, and what it used."""
        self.connector.start()
        self.wait(lambda: self.metric("rows_total") > 0)
        first, begun = self.metric("rows_total"), time.monotonic()
        cpu_before = self._usage().cpu_seconds
        self.wait(lambda: self.metric("rows_total") >= rows)
        elapsed = time.monotonic() - begun
        usage = self._usage()
        share = (rows - first) / rows
        return (rows - first) / elapsed, Usage((usage.cpu_seconds - cpu_before) / max(share, 1e-9), usage.rss_mib_max)

    def kill_to_publishing_seconds(self) -> float:
        self.connector.kill()
        self.insert(1)
        begun = time.monotonic()
        self.connector.start()
        self.wait(lambda: self.metric("rows_total") >= 1)
        return time.monotonic() - begun

    def latencies_ms(self) -> list[float]:
        """From before each commit to a read_committed reader, sorted."""
        consumer = Consumer(
            {
                **self.settings.kafka.librdkafka(),
                "group.id": "latency",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "auto.offset.reset": "latest",
            }
        )
        topic = self.settings.name("dispatch")
        partitions = [TopicPartition(topic, partition) for partition in range(4)]
        for partition in partitions:
            partition.offset = consumer.get_watermark_offsets(partition, 30)[1]
        consumer.assign(partitions)
        sent: dict[str, float] = {}
        found: list[float] = []
        insert = (
            "insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id,"
            " event_type, content_type, headers, payload, reason) values (gen_random_uuid(), %s, 1, %s, 'e', 't',"
            " 'text/plain', '{}', 'x', 'admitted')"
        )
        begun = time.monotonic()
        while len(found) < LATENCY_ROWS:
            if time.monotonic() - begun > DEADLINE_SECONDS:
                raise SystemExit("the latency rows did not arrive")
            due = begun + len(sent) / LATENCY_ROWS_PER_SECOND
            if len(sent) < LATENCY_ROWS and time.monotonic() >= due:
                delivery_id = f"latency-{len(sent)}"
                sent[delivery_id] = time.monotonic()
                self.connection.execute(insert, [delivery_id, f"destination-{len(sent) % 16}"])
            message = consumer.poll(0.0005)
            if message is not None and message.error() is None:
                headers = dict(message.headers() or [])
                delivery = headers["delivery_id"]
                if isinstance(delivery, bytes) and delivery.decode() in sent:
                    found.append((time.monotonic() - sent[delivery.decode()]) * 1000)
        consumer.close()
        return sorted(found)

    # --- looking ------------------------------------------------------------------------

    def metric(self, name: str) -> float:
        """A metric of the connector; 0 while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health_port}/metrics", timeout=5) as response:
                text = response.read().decode()
        except OSError:
            return 0.0
        prefix = f"outrider_connector_{name} "
        return next((float(line.removeprefix(prefix)) for line in text.splitlines() if line.startswith(prefix)), 0.0)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {DEADLINE_SECONDS:.0f} s in vain\n{self.connector.log_tail()}")
            time.sleep(0.01)

    def _usage(self) -> Usage:
        process = Path(f"/proc/{self.connector.pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), int(status["VmHWM"].split()[0]) / 1024)

    def _slot_is_active(self, slot: str) -> bool:
        row = self.connection.execute("select active from pg_replication_slots where slot_name = %s", [slot]).fetchone()
        return row is not None and bool(row[0])


def measure(rows: int) -> tuple[dict[str, Any], list[Goal]]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedStack(fast=True) as stack:
        bench = Bench(stack, Path(folder))
        try:
            bench.prepare()
            bench.insert(rows)
            reader = bench.bare_reader(rows)
            producer = bench.bare_producer(rows)
            connector, usage = bench.drain(rows)
            recovery = bench.kill_to_publishing_seconds()
            latencies = bench.latencies_ms()
        finally:
            bench.connector.terminate(30)
            bench.connection.close()
    p50, p99 = (latencies[int(len(latencies) * part)] for part in (0.5, 0.99))
    cpu = usage.cpu_seconds / rows * 1_000_000
    ratio = connector / min(reader, producer)
    figures = {
        "rows": rows,
        "connector_rows_per_second": round(connector),
        "bare_reader_rows_per_second": round(reader),
        "bare_producer_rows_per_second": round(producer),
        "ratio_to_slower_half": round(ratio, 3),
        "cpu_seconds_per_million_rows": round(cpu, 2),
        "rss_mib_max": round(usage.rss_mib_max, 1),
        "kill_to_publishing_seconds": round(recovery, 2),
        "latency_200_rows_per_second_p50_ms": round(p50, 1),
        "latency_200_rows_per_second_p99_ms": round(p99, 1),
    }
    goals = [
        Goal.at_least("connector against the slower half", round(ratio, 3), "ratio", 0.5),
        Goal.at_most("resident memory", round(usage.rss_mib_max, 1), "MiB", 100),
        Goal.at_most("SIGKILL to publishing again", round(recovery, 2), "s", 2),
    ]
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.connector", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows that wait for the connector")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    host = machine()
    figures, goals = measure(arguments.rows)
    return show("connector", host, figures, goals, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
