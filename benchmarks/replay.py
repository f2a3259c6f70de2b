"""Replays of small and large ranges: how fast they are planned and run, and that memory does not grow with them.

``make bench NAME=replay ARGS=--json`` starts its own Kafka and PostgreSQL, which flushes each commit. For each size it fills
a ledger with deliveries that were handed to Kafka and never claimed, and a topic with their messages, and then measures the
program as an operator uses it, each command in a process of its own:

- ``outrider replay plan --topic``: reads every message and counts its delivery by destination, state and age;
- ``outrider replay run``: reads them again, takes each delivery down, and dispatches it.

Nothing limits the run but the machine: its rate is unbounded, and its destinations have room for all. Afterwards the
outbox is counted: each delivery was dispatched once. ``--quick`` takes a few thousand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.report import Goal, machine, show
from benchmarks.support.processes import memory
from pipeline.ledger.migrate import migrate_up
from pipeline.stack.component import program_environment
from pipeline.stack.embedded import EmbeddedStack
from topics.declarations import declare_topics

SIZES: Final = (10_000, 1_000_000)
QUICK_SIZES: Final = (1_000, 10_000)
DESTINATIONS: Final = 20
PAYLOAD: Final = b'{"asset":42,"state":"processed","padding":"' + b"x" * 150 + b'"}'
GROWTH_MIB_MAX: Final = 48.0
LOOK_SECONDS: Final = 0.02

FILL = """
insert into outrider.event (event_id, event_type, content_type, payload, by_subscription)
select 'e' || n, 'media.processed', 'application/json', %(payload)b, false from generate_series(1, %(rows)s) n;
insert into outrider.delivery (delivery_id, event_id, destination_id, state, dispatch_seq, lost_after)
select 'dlv_' || n, 'e' || n, 'd' || n %% %(destinations)s, 'enqueued', 1, clock_timestamp() + interval '60 s'
from generate_series(1, %(rows)s) n;
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One command: how long it took, the most memory it had, and what it said."""

    seconds: float
    peak_mib: float
    said: Any


def measure(settings: Mapping[str, object], folder: Path, *arguments: str) -> Measured:
    """Run the program. Raises RuntimeError with its words where it fails."""
    environment = program_environment(dict(settings), inherit_settings=False)
    out, errors = folder / "out", folder / "errors"
    began = time.perf_counter()
    peak = 0.0
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *arguments], env=environment, stdout=stdout, stderr=stderr
        )
        while process.poll() is None:
            with suppress(OSError, KeyError):  # it ends at this moment
                peak = max(peak, memory(process.pid).peak)
            time.sleep(LOOK_SECONDS)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{arguments[:2]} failed: {errors.read_text()[-2000:]}")
    return Measured(seconds, peak, json.loads(out.read_text()))


def fill(stack: EmbeddedStack, dsn: str, prefix: str, rows: int) -> None:
    """A ledger and a topic that know the same deliveries."""
    migrate_up(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into outrider.destination (destination_id, url, start_rate_per_second, burst) "
            "select 'd' || n, 'https://receiver.example', 100000, 100000 from generate_series(0, %s) n",
            [DESTINATIONS - 1],
        )
        # What is measured is the replay: rows go in without checks that hold by construction.
        connection.execute("set session_replication_role = replica; set synchronous_commit = off")
        for statement in FILL.split(";")[:2]:
            connection.execute(statement.encode(), {"payload": PAYLOAD, "rows": rows, "destinations": DESTINATIONS})
        connection.execute("vacuum analyze outrider.delivery")
        connection.execute("analyze outrider.event")
    declared = declare_topics(
        prefix=prefix, dispatch_partitions=6, attempts_partitions=1, replication_factor=1, min_insync_replicas=1
    )
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
    for creation in admin.create_topics(
        [NewTopic(t.name, t.partitions, 1, config=t.config) for t in declared]
    ).values():
        creation.result(30)
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap_servers, "linger.ms": 20, "compression.type": "lz4", "log_level": 0}
    )
    for number in range(1, rows + 1):
        headers: list[tuple[str, str | bytes | None]] = [
            *(("id", str(number)), ("delivery_id", f"dlv_{number}"), ("dispatch_seq", "1"), ("reason", "admitted"))
        ]
        key = f"d{number % DESTINATIONS}"
        while True:
            try:
                producer.produce(f"{prefix}.dispatch", key=key, value=PAYLOAD, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("Kafka did not take all messages")


def run_size(stack: EmbeddedStack, folder: Path, rows: int) -> tuple[dict[str, Any], float, int]:
    """Figures of one size, the larger of both peaks, and deliveries that were left out or dispatched twice."""
    name = f"replay_{rows}"
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
    plan = measure(
        settings, folder, "replay", "plan", "--topic", "--rate", "1000000", "--share", "1", "--out", str(path), "--json"
    )
    run = measure(settings, folder, "replay", "run", str(path), "--reason", "benchmark", "--json")
    with psycopg.connect(dsn) as connection:
        (once,) = connection.execute(
            "select count(*) from outrider.delivery d where d.dispatch_seq = 2 and "
            "(select count(*) from outrider.dispatch_outbox o where o.delivery_id = d.delivery_id) = 1"
        ).fetchone() or (0,)
        (selected,) = connection.execute(
            "select extract(epoch from min(i.decided_at) - r.started_at)::float8 from outrider.run r, outrider.replay_item i "
            "where i.run_id = r.run_id and r.kind = 'replay' group by r.started_at"
        ).fetchone() or (0.0,)
    figures = {
        f"planned_messages_per_second_at_{rows}": round(plan.said["read"]["messages"] / plan.seconds),
        f"replayed_messages_per_second_at_{rows}": round(run.said["replayed"] / run.seconds),
        f"plan_seconds_at_{rows}": round(plan.seconds, 1),
        f"run_seconds_at_{rows}": round(run.seconds, 1),
        f"of_which_selecting_seconds_at_{rows}": round(selected, 1),
        f"plan_rss_mib_at_{rows}": plan.peak_mib,
        f"run_rss_mib_at_{rows}": run.peak_mib,
    }
    return figures, max(plan.peak_mib, run.peak_mib), rows - once


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.replay", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a few thousand deliveries")
    parser.add_argument("--sizes", type=int, nargs=2, help="deliveries of the small and the large range")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    small, large = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    measured_on = machine()
    with tempfile.TemporaryDirectory() as folder, EmbeddedStack() as stack:
        figures, small_peak, small_wrong = run_size(stack, Path(folder), small)
        more, large_peak, large_wrong = run_size(stack, Path(folder), large)
    goals = [
        Goal.at_most("left_out_or_dispatched_twice", small_wrong + large_wrong, "deliveries", 0),
        Goal.at_most(
            "memory_that_the_large_range_takes_more", round(large_peak - small_peak, 1), "MiB", GROWTH_MIB_MAX
        ),
    ]
    return show("replay", measured_on, figures | more, goals, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
