"""The connector against real Debezium: the same rows, the same broker and database, in one run.

``make bench NAME=connector [ARGS="--json --rows N --quick --only PART"]`` starts its own Kafka, PostgreSQL and Kafka
Connect with Debezium (tuned, exactly once), and measures

- ``drain``: waiting rows, by a Debezium that starts cold, then by a warm one; CPU time and memory of both;
- ``large``: as many rows in one source transaction, through the connector alone: its memory;
- ``latency``: from before a row's insert to a reader of committed records, at 200 and 1 000 rows/s, against Debezium
  tuned for throughput and for latency;
- ``kill``: SIGKILL under load until a row is read that was committed after it;
- ``foreign``: the same with 10 000 changes/s of a table beside the outbox that is not published.

Every count is checked by a reader of committed records: a row too few or too many ends the run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.report import Goal, machine, show
from benchmarks.support.outbox import Outbox, wait
from benchmarks.support.subjects import OurConnector, RealDebezium, Subject
from benchmarks.support.traffic import SETTLE_SECONDS, catch_up, foreign_traffic, latencies_ms, reading, writing
from pipeline.stack.embedded import EmbeddedStack

RATES: Final = (200, 1_000)
KILL_ROWS_PER_SECOND: Final = 200
FOREIGN_ROWS_PER_SECOND: Final = 10_000
LATENCY_MS_P50_MAX: Final = 6
LATENCY_MS_P99_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rows: int
    seconds: float
    kills: int
    debezium_kills: int


@dataclass(slots=True)
class Bench:
    """What one run has, and what it has found."""

    outbox: Outbox
    ours: OurConnector
    debezium: RealDebezium
    scale: Scale
    figures: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"connector: {text}", file=sys.stderr, flush=True)


def drain_of(bench: Bench, subject: Subject, name: str, rows: int, begin: Callable[[], None]) -> dict[str, float]:
    """Let a subject publish the rows that wait, and count them."""
    outbox = bench.outbox
    places, start = outbox.ends(subject.topic), outbox.end(subject.topic)
    asked = time.monotonic()
    begin()
    rate, _, last = outbox.watch_drain(subject.topic, start, rows)
    usage = subject.usage()
    found = outbox.count_from(places)
    if found != rows:
        raise SystemExit(f"{name}: {found} rows were read, {rows} were committed")
    result = {
        "rows_per_second": round(rate),
        "seconds_from_start_to_last_row": round(last - asked, 2),
        "cpu_seconds": usage.cpu_seconds,
        "rss_mib_max": round(usage.rss_mib_max, 1),
    }
    bench.say(f"{name}: {result}")
    return result


def measure_drain(bench: Bench) -> None:
    ours, debezium, rows, million = bench.ours, bench.debezium, bench.scale.rows, bench.scale.rows / 1e6
    debezium.end()
    bench.outbox.insert(rows)
    first = drain_of(bench, ours, "outrider", rows, ours.launch)
    ours.leave()
    cold = drain_of(bench, debezium, "debezium cold", rows, debezium.restart)
    debezium.leave()
    bench.outbox.insert(rows)
    second = drain_of(bench, ours, "outrider again", rows, ours.launch)
    ours.leave()
    before = debezium.usage().cpu_seconds
    warm = drain_of(bench, debezium, "debezium warm", rows, debezium.resume)
    warm["cpu_seconds"] -= before
    debezium.leave()
    for name, found in (
        ("outrider", first),
        ("outrider_again", second),
        ("debezium_cold", cold),
        ("debezium_warm", warm),
    ):
        for figure, value in found.items():
            if figure != "cpu_seconds":
                bench.figures[f"drain_{name}_{figure}"] = value
        bench.figures[f"drain_{name}_cpu_seconds_per_million_rows"] = round(found["cpu_seconds"] / million, 2)
    cpu = max(first["cpu_seconds"], second["cpu_seconds"])
    bench.goals += [
        Goal.at_least(
            "drain against warm Debezium", round(second["rows_per_second"] / warm["rows_per_second"], 2), "x", 3
        ),
        Goal.at_least(
            "drain against cold Debezium", round(first["rows_per_second"] / cold["rows_per_second"], 2), "x", 8
        ),
        Goal.at_most("CPU time against warm Debezium", round(cpu / warm["cpu_seconds"], 3), "x", 0.2),
        Goal.at_most("memory with this backlog", max(first["rss_mib_max"], second["rss_mib_max"]), "MiB", 100),
    ]


def measure_large(bench: Bench) -> None:
    bench.outbox.insert(bench.scale.rows, transaction_rows=bench.scale.rows)
    found = drain_of(bench, bench.ours, "outrider, one source transaction", bench.scale.rows, bench.ours.launch)
    bench.ours.leave()
    bench.figures["large_rows_per_second"] = found["rows_per_second"]
    bench.figures["large_seconds_from_start_to_last_row"] = found["seconds_from_start_to_last_row"]
    bench.goals.append(Goal.at_most("memory with one large transaction", found["rss_mib_max"], "MiB", 100))


def latency_of(bench: Bench, subject: Subject, name: str, rate: int) -> tuple[float, float]:
    found = latencies_ms(bench.outbox, subject.topic, rate, bench.scale.seconds)
    p50, p99 = (round(found[int(len(found) * part)], 1) for part in (0.5, 0.99))
    bench.figures[f"latency_{name}_{rate}_rows_per_second_p50_ms"] = p50
    bench.figures[f"latency_{name}_{rate}_rows_per_second_p99_ms"] = p99
    bench.say(f"{name} at {rate} rows/s: {p50} ms, {p99} ms (p50, p99)")
    return p50, p99


def measure_latency(bench: Bench) -> None:
    bench.ours.start()
    found = {rate: latency_of(bench, bench.ours, "outrider", rate) for rate in RATES}
    bench.ours.leave()
    best: dict[int, list[tuple[float, float]]] = {rate: [] for rate in RATES}
    bench.debezium.resume()
    for tuning in ("throughput", "latency"):
        bench.debezium.tune(tuning)
        for rate in RATES:
            best[rate].append(latency_of(bench, bench.debezium, f"debezium_{tuning}", rate))
    bench.debezium.leave()
    for rate, (p50, p99) in found.items():
        bench.goals += [
            Goal.at_most(f"p50 at {rate} rows/s", p50, "ms", LATENCY_MS_P50_MAX),
            Goal.at_most(f"p99 at {rate} rows/s", p99, "ms", LATENCY_MS_P99_MAX),
            Goal.at_most(f"p50 at {rate} rows/s, best Debezium", p50, "ms", min(each[0] for each in best[rate])),
            Goal.at_most(f"p99 at {rate} rows/s, best Debezium", p99, "ms", min(each[1] for each in best[rate])),
        ]


def kills_of(bench: Bench, subject: Subject, kills: int) -> list[float]:
    """Seconds from each SIGKILL until a row was read that was inserted after it."""
    killed_ns: list[int] = []
    catch_up(bench.outbox, subject.topic)
    with reading(bench.outbox, subject.topic) as into:
        with writing(bench.outbox, KILL_ROWS_PER_SECOND) as written:
            for _ in range(kills):
                time.sleep(1.5)
                killed_ns.append(time.monotonic_ns())
                subject.kill()
                subject.launch()
                wait(lambda: into.latest_sent_ns > killed_ns[-1])
        rows, last_sent_ns = written.recv()
        wait(lambda: into.latest_sent_ns >= last_sent_ns)
        time.sleep(SETTLE_SECONDS)
        arrivals = into.arrivals()
    if len(arrivals) != rows:
        raise SystemExit(f"{len(arrivals)} rows were read of {rows}")
    seconds = [
        round((min(row.read_ns for row in arrivals if row.sent_ns > killed) - killed) / 1e9, 2) for killed in killed_ns
    ]
    bench.say(f"{subject.name}: {seconds} s from SIGKILL to publishing again")
    return seconds


def measure_kill(bench: Bench) -> None:
    bench.ours.start()
    ours = kills_of(bench, bench.ours, bench.scale.kills)
    bench.ours.leave()
    bench.debezium.resume()
    debezium = kills_of(bench, bench.debezium, bench.scale.debezium_kills)
    bench.debezium.leave()
    bench.figures["kill_outrider_seconds"] = ours
    bench.figures["kill_debezium_seconds"] = debezium
    bench.goals += [
        Goal.at_most("SIGKILL to publishing again, worst", max(ours), "s", 2),
        Goal.at_most("SIGKILL to publishing again against Debezium", round(median(ours) / median(debezium), 3), "x", 1),
    ]


def measure_foreign(bench: Bench) -> None:
    """What a busy table costs that is not published. No goal: the figures stand beside those without it."""
    rows = bench.scale.rows // 5
    with foreign_traffic(bench.outbox, FOREIGN_ROWS_PER_SECOND) as held:
        bench.outbox.insert(rows)
        found = drain_of(bench, bench.ours, "outrider, with foreign changes", rows, bench.ours.launch)
        for rate in RATES:
            latency_of(bench, bench.ours, "outrider_with_foreign", rate)
    bench.ours.leave()
    bench.figures["foreign_changes_per_second"] = round(held.recv())
    bench.figures["foreign_drain_rows_per_second"] = found["rows_per_second"]


PARTS: Final[dict[str, Callable[[Bench], None]]] = {
    "drain": measure_drain,
    "latency": measure_latency,
    "kill": measure_kill,
    "foreign": measure_foreign,
    "large": measure_large,
}


def measure(scale: Scale, parts: list[str]) -> tuple[dict[str, Any], list[Goal]]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedStack(fast=True) as stack:
        outbox = Outbox(stack, Path(folder))
        bench = Bench(outbox, OurConnector(outbox), RealDebezium(outbox), scale)
        bench.figures["rows"] = scale.rows
        try:
            # Both slots are made before any row: all of them are streamed.
            bench.ours.start()
            bench.ours.leave()
            if {"drain", "latency", "kill"} & set(parts):
                bench.debezium.start()
                bench.debezium.leave()
            for part in parts:
                PARTS[part](bench)
        finally:
            bench.ours.end()
            bench.debezium.end()
            outbox.close()
    return bench.figures, bench.goals


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.connector", description=__doc__)
    parser.add_argument("--rows", type=int, help="rows that wait to be drained (1 000 000; with --quick 100 000)")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter, for a first look")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given several times")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    scale = Scale(100_000, 3, 2, 1) if arguments.quick else Scale(1_000_000, 10, 5, 2)
    if arguments.rows:
        scale = Scale(arguments.rows, scale.seconds, scale.kills, scale.debezium_kills)
    host = machine()
    figures, goals = measure(scale, arguments.only or list(PARTS))
    return show("connector", host, figures, goals, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
