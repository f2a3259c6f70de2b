"""Where a demo runs: addresses, logins and the processes that it may kill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.stack.child_process import ChildProcess, OnStart
from pipeline.stack.development_stack import Announce, DevelopmentStack
from topics.declarations import ATTEMPTS, DISPATCH, QUARANTINE

PARTS = ("kafka", "postgres", "connector", "worker", "reconciler")
WORKERS = 2
TOPIC_PREFIX = "outrider"

SETTINGS: Mapping[str, object] = {
    "topic_prefix": TOPIC_PREFIX,
    "dispatch_partitions": 6,
    "attempts_partitions": 6,
    # What a killed worker held is to be found again within seconds.
    "worker_lease_margin_seconds": 2.0,
    "worker_session_timeout_seconds": 6.0,
    "worker_drain_seconds": 10.0,
    # Receivers that fail on purpose would be cut off, and be probed for longer than a demo lasts.
    "worker_breaker_failures": 1_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A running pipeline. Its DSNs hold passwords."""

    application_dsn: str
    operator_dsn: str
    admin_dsn: str
    """Of a role that may make the business table, and read all."""
    kafka: Mapping[str, Any]
    """librdkafka's configuration with addresses and security."""
    dispatch_topic: str
    attempts_topic: str
    quarantine_topic: str
    workers: tuple[ChildProcess, ...]
    """Each named as its worker_id."""
    connector: ChildProcess
    reconciler: ChildProcess
    folder: Path
    """For the receiver's configuration, record and log."""
    on_start: OnStart | None = None
    """Told of the receiver's process, so that it ends with ours."""


@contextmanager
def embedded_site(folder: Path, announce: Announce) -> Iterator[Site]:
    """Start Kafka, PostgreSQL and the components with temporary data; end all of it after the block.

    Logs of all parts are in `folder`/logs afterwards. Raises StackError when a part cannot run.
    """
    stack = DevelopmentStack(None, logs=folder / "logs", only=PARTS, workers=WORKERS, settings=SETTINGS)
    stack.start(announce)
    try:
        dsns, processes = stack.record(None).dsns, stack.processes
        yield Site(
            application_dsn=dsns["application"],
            operator_dsn=dsns["operator"],
            admin_dsn=stack.servers.postgres_dsn,
            kafka={"bootstrap.servers": stack.servers.bootstrap_servers},
            dispatch_topic=f"{TOPIC_PREFIX}.{DISPATCH}",
            attempts_topic=f"{TOPIC_PREFIX}.{ATTEMPTS}",
            quarantine_topic=f"{TOPIC_PREFIX}.{QUARANTINE}",
            workers=tuple(process for name, process in processes.items() if name.startswith("worker")),
            connector=processes["connector"],
            reconciler=processes["reconciler"],
            folder=folder,
            on_start=stack.servers.watch,
        )
    finally:
        stack.stop()
