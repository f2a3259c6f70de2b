"""Rebuilding small and large ledgers from the topics: how fast it is planned and run, and that memory does not grow with them.

``make bench NAME=rebuild ARGS=--json`` starts its own Kafka and PostgreSQL, which flushes each commit. For each size it fills the
topics as the connector leaves them, each delivery with its dispatch and every second one with the attempt that succeeded,
beside a ledger that was restored to before the first of them. Then it measures the program as an operator uses it, each
command in a process of its own:

- ``outrider replay rebuild``: reads both topics, and counts what the ledger lacks;
- ``outrider replay run``: reads them again, and restores events and deliveries, half of them as succeeded and half as due.

Afterwards the ledger is counted: each delivery is there, in its state. ``--quick`` takes a few thousand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.replay import DESTINATIONS, GROWTH_MIB_MAX, PAYLOAD, QUICK_SIZES, SIZES, measure
from benchmarks.report import Goal, machine, show
from pipeline.core.ids import delivery_identity, message_identity
from pipeline.ledger.migrate import migrate_up
from pipeline.stack.embedded import EmbeddedStack
from topics.codecs import Attempt
from topics.declarations import declare_topics

MOMENT: Final = "2026-12-01T00:00:00Z"
FLUSH_SECONDS: Final = 60.0
Record = tuple[str, str, bytes, list[tuple[str, str | bytes | None]]]
"""Topic, key, value, headers."""


def records(prefix: str, rows: int) -> Iterator[Record]:
    """What the topics hold of so many deliveries."""
    for number in range(1, rows + 1):
        event_id, destination_id = f"e{number}", f"d{number % DESTINATIONS}"
        delivery_id = delivery_identity(event_id, destination_id)
        texts = {
            "id": str(message_identity(delivery_id, 1)),
            "delivery_id": delivery_id,
            "dispatch_seq": "1",
            "event_id": event_id,
            "event_type": "media.processed",
            "content_type": "application/json",
            "reason": "admitted",
            "headers": "{}",
        }
        yield f"{prefix}.dispatch", destination_id, PAYLOAD, list(texts.items())
        if number % 2 == 0:
            attempt = Attempt(
                attempt_id=number,
                recorded_at=MOMENT,
                delivery_id=delivery_id,
                event_id=event_id,
                event_type="media.processed",
                destination_id=destination_id,
                attempt=1,
                dispatch_seq=1,
                worker_id="w",
                result="succeeded",
                outcome="success",
                status=200,
                ambiguous=False,
                error=None,
                response_excerpt=None,
                retry_after_seconds=None,
                next_attempt_at=None,
                key_ids=[],
                payload_sha256=b"",
                started_at=MOMENT,
                duration_seconds=0.01,
            )
            headers: list[tuple[str, str | bytes | None]] = [("id", str(number)), ("delivery_id", delivery_id)]
            yield f"{prefix}.attempts", destination_id, msgspec.json.encode(attempt), headers


def fill(stack: EmbeddedStack, dsn: str, prefix: str, rows: int) -> None:
    """A ledger that knows the receivers alone, and topics that know all."""
    migrate_up(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into outrider.destination (destination_id, url) "
            "select 'd' || n, 'https://receiver.example' from generate_series(0, %s) n",
            [DESTINATIONS - 1],
        )
    declared = declare_topics(
        prefix=prefix, dispatch_partitions=6, attempts_partitions=6, replication_factor=1, min_insync_replicas=1
    )
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
    for creation in admin.create_topics(
        [NewTopic(t.name, t.partitions, 1, config=t.config) for t in declared]
    ).values():
        creation.result(30)
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap_servers, "linger.ms": 20, "compression.type": "lz4", "log_level": 0}
    )
    for topic, key, value, headers in records(prefix, rows):
        while True:
            try:
                producer.produce(topic, key=key, value=value, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(FLUSH_SECONDS):
        raise RuntimeError("Kafka did not take all messages")


def run_size(stack: EmbeddedStack, folder: Path, rows: int) -> tuple[dict[str, Any], float, int]:
    """Figures of one size, the larger of both peaks, and deliveries that are not as they should be."""
    name = f"rebuild_{rows}"
    with psycopg.connect(stack.postgres_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    dsn = make_conninfo(stack.postgres_dsn, dbname=name)
    prefix = f"bench-{rows}"
    fill(stack, dsn, prefix, rows)
    settings = {
        "postgres_dsn": dsn,
        "kafka_bootstrap_servers": stack.bootstrap_servers,
        "topic_prefix": prefix,
        "topic_replication_factor": 1,
        "topic_min_insync_replicas": 1,
    }
    path = folder / f"{name}.plan"
    plan = measure(settings, folder, "replay", "rebuild", "--rate", "1000000", "--out", str(path), "--json")
    run = measure(settings, folder, "replay", "run", str(path), "--reason", "benchmark", "--json")
    with psycopg.connect(dsn) as connection:
        (right,) = connection.execute(
            "select count(*) from outrider.delivery d join outrider.event e on e.event_id = d.event_id "
            "where d.dispatch_seq = 1 and e.payload = %s and d.state = "
            "case substr(d.event_id, 2)::integer %% 2 when 0 then 'succeeded' else 'pending' end",
            [PAYLOAD],
        ).fetchone() or (0,)
    figures = {
        f"plan_seconds_at_{rows}": round(plan.seconds, 1),
        f"run_seconds_at_{rows}": round(run.seconds, 1),
        f"planned_messages_per_second_at_{rows}": round(plan.said["read"]["messages"] / plan.seconds),
        f"rebuilt_deliveries_per_second_at_{rows}": round(run.said["rebuilt"] / run.seconds),
        f"plan_rss_mib_at_{rows}": plan.peak_mib,
        f"run_rss_mib_at_{rows}": run.peak_mib,
    }
    return figures, max(plan.peak_mib, run.peak_mib), rows - right


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.rebuild", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a few thousand deliveries")
    parser.add_argument("--sizes", type=int, nargs=2, help="deliveries of the small and the large ledger")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    small, large = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    measured_on = machine()
    with tempfile.TemporaryDirectory() as folder, EmbeddedStack() as stack:
        figures, small_peak, small_wrong = run_size(stack, Path(folder), small)
        more, large_peak, large_wrong = run_size(stack, Path(folder), large)
    goals = [
        Goal.at_most("missing_or_in_a_wrong_state", small_wrong + large_wrong, "deliveries", 0),
        Goal.at_most(
            "memory_that_the_large_ledger_takes_more", round(large_peak - small_peak, 1), "MiB", GROWTH_MIB_MAX
        ),
    ]
    return show("rebuild", measured_on, figures | more, goals, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
