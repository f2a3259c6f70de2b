"""Delivery against the least that a sender can do: a bare aiohttp client that signs and posts the same bodies.

``make bench NAME=delivery ARGS="--json"`` starts its own Kafka, PostgreSQL, pipeline and receiver for each part:

- ``backlog``: one worker empties a backlog, to one and to twenty destinations; the bare client before and after it;
- ``whole``: admissions and deliveries together, the CPU of all processes counted;
- ``latency``: commit to receipt at 200 events/s;
- ``isolation``: healthy destinations alone, then beside hanging ones and a throttled one with a backlog each;
- ``memory``: the worker with few and with many deliveries waiting.

``--only PART`` runs one. Figures that can be compared between machines are the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Goal, machine, show
from benchmarks.support.admitting import Load
from benchmarks.support.pipeline_rig import Rig, opened
from benchmarks.support.processes import cpu_seconds, memory

CLIENT_CONCURRENCY: Final = 64
LATENCY_EVENTS_PER_SECOND: Final = 200
HEALTHY: Final = tuple(f"healthy{n}" for n in range(10))
HEALTHY_EVENTS_PER_SECOND: Final = 100
HANGING: Final = tuple(f"hanging{n}" for n in range(20))
WARM_UP_SHARE: Final = 0.1

Part = Callable[[Rig, "Sizes"], tuple[dict[str, Any], list[Goal]]]


@dataclass(frozen=True, slots=True)
class Sizes:
    backlog: int = 50_000
    bare_requests: int = 20_000
    whole_events: int = 20_000
    steady_seconds: int = 20
    waiting_each_hanging: int = 5_000
    waiting_throttled: int = 100_000
    waiting_few: int = 10_000
    waiting_many: int = 1_000_000


QUICK: Final = Sizes(
    backlog=10_000,
    bare_requests=5_000,
    whole_events=4_000,
    steady_seconds=8,
    waiting_each_hanging=250,
    waiting_throttled=5_000,
    waiting_few=2_000,
    waiting_many=20_000,
)


def backlog(rig: Rig, sizes: Sizes) -> tuple[dict[str, Any], list[Goal]]:
    figures: dict[str, Any] = {}
    goals = []
    for count in (1, 20):
        names = [f"to{count}-{n}" for n in range(count)]
        rig.add_destinations(names, "ok")
        rig.stop_worker()
        rig.admit_at_once(f"backlog{count}", sizes.backlog, names)
        bare = [rig.run_bare_client(sizes.bare_requests, CLIENT_CONCURRENCY)]
        worker = _drain(rig, sizes.backlog)
        bare.append(rig.run_bare_client(sizes.bare_requests, CLIENT_CONCURRENCY))
        requests_per_second = statistics.mean(sizes.bare_requests / one["seconds"] for one in bare)
        cpu_per_request = statistics.mean(one["cpu_seconds"] / sizes.bare_requests for one in bare)
        figures |= {f"{name}_to_{count}": value for name, value in worker.items()}
        figures[f"bare_requests_per_second_to_{count}"] = round(requests_per_second)
        figures[f"bare_cpu_us_per_request_to_{count}"] = _us(cpu_per_request)
        cpu_ratio = _us(cpu_per_request) / worker["worker_cpu_us_per_delivery"]
        rate_ratio = worker["deliveries_per_second"] / requests_per_second
        goals += [
            Goal.at_least(f"bare_cpu_over_worker_cpu_to_{count}", round(cpu_ratio, 3), "x", 0.5),
            Goal.at_least(f"deliveries_over_bare_requests_to_{count}", round(rate_ratio, 3), "x", 0.4),
        ]
    return figures, goals


def _drain(rig: Rig, backlog: int) -> dict[str, float]:
    """Rates between the first tenth of a backlog and its end: starting is another figure."""
    before = rig.received()
    rig.worker.start()
    begin_at = before + int(backlog * WARM_UP_SHARE)
    rig.wait(lambda: rig.received() >= begin_at, "the worker is at work")
    first, started, used = rig.received(), time.monotonic(), _cpu_by_part(rig)
    rig.wait(lambda: rig.received() >= before + backlog, "the backlog is delivered")
    seconds, count = time.monotonic() - started, rig.received() - first
    now = _cpu_by_part(rig)
    return {
        "deliveries_per_second": round(count / seconds),
        **{f"{part}_cpu_us_per_delivery": _us((now[part] - used[part]) / count) for part in now},
    }


def whole(rig: Rig, sizes: Sizes) -> tuple[dict[str, Any], list[Goal]]:
    names = [f"to{n}" for n in range(20)]
    rig.add_destinations(names, "ok")
    bare = [rig.run_bare_client(sizes.bare_requests, CLIENT_CONCURRENCY)]
    load = Load(rig.application_dsn, "warm", sizes.whole_events // 10, tuple(names))
    _deliver(rig, load)
    before, begun = _cpu_by_part(rig), time.monotonic()
    admitted = _deliver(rig, Load(rig.application_dsn, "whole", sizes.whole_events, tuple(names)))
    seconds, now = time.monotonic() - begun, _cpu_by_part(rig)
    bare.append(rig.run_bare_client(sizes.bare_requests, CLIENT_CONCURRENCY))
    per_second = sizes.whole_events / seconds
    requests_per_second = statistics.mean(sizes.bare_requests / one["seconds"] for one in bare)
    cpu_per_request = statistics.mean(one["cpu_seconds"] / sizes.bare_requests for one in bare)
    parts = {part: (now[part] - before[part]) / sizes.whole_events for part in now}
    parts["application"] = admitted["cpu_seconds"] / sizes.whole_events
    cpu_ratio = sum(parts.values()) / cpu_per_request
    figures = {
        "whole_deliveries_per_second": round(per_second),
        "whole_admissions_per_second": round(sizes.whole_events / admitted["seconds"]),
        "whole_bare_requests_per_second": round(requests_per_second),
        "whole_bare_cpu_us_per_request": _us(cpu_per_request),
        **{f"whole_{part}_cpu_us_per_delivery": _us(value) for part, value in parts.items()},
    }
    return figures, [
        Goal.at_least("whole_deliveries_over_bare_requests", round(per_second / requests_per_second, 3), "x", 0.3),
        Goal.at_most("whole_cpu_over_bare_cpu", round(cpu_ratio, 2), "x", 5),
    ]


def _deliver(rig: Rig, load: Load) -> dict[str, Any]:
    before = rig.received()
    admitted = rig.run_application(load)
    rig.wait(lambda: rig.received() >= before + load.events, "all that was admitted is delivered")
    return admitted


def latency(rig: Rig, sizes: Sizes) -> tuple[dict[str, Any], list[Goal]]:
    names = tuple(f"timed{n}" for n in range(10))
    rig.add_destinations(names, "timed")
    _steady(rig, "warm", names, LATENCY_EVENTS_PER_SECOND, 3)
    found = _steady(rig, "steady", names, LATENCY_EVENTS_PER_SECOND, sizes.steady_seconds)
    return {f"latency_{name}_ms": value for name, value in found.items()}, [
        Goal.at_most("commit_to_receipt_p50_ms", found["p50"], "ms", 10),
        Goal.at_most("commit_to_receipt_p99_ms", found["p99"], "ms", 30),
    ]


def isolation(rig: Rig, sizes: Sizes) -> tuple[dict[str, Any], list[Goal]]:
    rig.add_destinations(HEALTHY, "timed")
    rig.add_destinations(HANGING, "hang", rate=50, burst=50, concurrency=16)
    rig.add_destinations(["throttled"], "ok", rate=1, burst=1)
    _steady(rig, "warm", HEALTHY, HEALTHY_EVENTS_PER_SECOND, 3)
    alone = _steady(rig, "alone", HEALTHY, HEALTHY_EVENTS_PER_SECOND, sizes.steady_seconds)
    rig.admit_at_once("hanging", sizes.waiting_each_hanging * len(HANGING), HANGING)
    rig.admit_at_once("throttled", sizes.waiting_throttled, ["throttled"])
    beside = _steady(rig, "beside", HEALTHY, HEALTHY_EVENTS_PER_SECOND, sizes.steady_seconds)
    figures = {f"healthy_alone_{name}_ms": value for name, value in alone.items()}
    figures |= {f"healthy_beside_{name}_ms": value for name, value in beside.items()}
    return figures, [Goal.at_most("healthy_p99_growth", round(beside["p99"] / alone["p99"], 2), "x", 1.2)]


def _steady(rig: Rig, prefix: str, names: tuple[str, ...], per_second: int, seconds: int) -> dict[str, float]:
    """Commit to first receipt at a steady rate, in ms."""
    load = Load(rig.application_dsn, prefix, per_second * seconds, names, 4, per_second, is_timed=True)
    before = rig.received()
    commits = rig.run_application(load)["commits"]
    rig.wait(lambda: rig.received() >= before + len(commits), "all healthy deliveries are received")
    receipts = rig.receipts()
    took = sorted((receipts[delivery_id] - at) * 1000 for delivery_id, at in commits.items())
    return {
        "p50": round(took[len(took) // 2], 1),
        "p99": round(took[int(len(took) * 0.99)], 1),
        "max": round(took[-1], 1),
    }


def waiting_memory(rig: Rig, sizes: Sizes) -> tuple[dict[str, Any], list[Goal]]:
    rig.add_destinations(["slow"], "ok", rate=1, burst=1)
    figures: dict[str, Any] = {}
    for name, events in (("few", sizes.waiting_few), ("many", sizes.waiting_many - sizes.waiting_few)):
        rig.admit_at_once(name, events, ["slow"])
        rig.wait(rig.is_caught_up, "the worker has put down all that it was handed")
        used = memory(rig.worker.pid)
        figures[f"worker_rss_mib_{name}_waiting"] = used.now
        figures[f"worker_rss_mib_peak_{name}_waiting"] = used.peak
    growth = figures["worker_rss_mib_many_waiting"] / figures["worker_rss_mib_few_waiting"]
    return figures, [Goal.at_most("worker_rss_growth", round(growth, 3), "x", 1.2)]


def _cpu_by_part(rig: Rig) -> dict[str, float]:
    return {
        "worker": cpu_seconds(rig.worker.pid),
        "postgres": cpu_seconds(rig.pid("postgres"), children=True),
        "kafka": cpu_seconds(rig.pid("kafka")),
        "connector": cpu_seconds(rig.pid("connector")),
        "reconciler": cpu_seconds(rig.pid("reconciler")),
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


PARTS: Final[dict[str, Part]] = {
    "backlog": backlog,
    "whole": whole,
    "latency": latency,
    "isolation": isolation,
    "memory": waiting_memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.delivery", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured_on = machine()
    figures: dict[str, Any] = {}
    goals: list[Goal] = []
    for name in options.only or PARTS:
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as rig:
            found, held = PARTS[name](rig, QUICK if options.quick else Sizes())
        figures |= found
        goals += held
    return show("delivery", measured_on, figures, goals, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
