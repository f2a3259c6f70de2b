"""Where a demo runs: addresses, logins and the processes that it may kill."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.settings import PREFIX, environment_of, load_settings
from pipeline.stack.child_process import ChildProcess, OnStart
from pipeline.stack.development_stack import Announce, DevelopmentStack

PARTS = ("kafka", "postgres", "connector", "worker", "reconciler")
WORKERS = 2
CACHE_VARIABLE = f"{PREFIX}CACHE_DIR"

SETTINGS: Mapping[str, object] = {
    "dispatch_partitions": 6,
    "attempts_partitions": 6,
    # What a killed worker held is to be found again within seconds.
    "worker_lease_margin_seconds": 2.0,
    "worker_session_timeout_seconds": 6.0,
    "worker_drain_seconds": 10.0,
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
    workers: tuple[ChildProcess, ...]
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
    logs = folder / "logs"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_these_settings(SETTINGS):
        settings = load_settings()
        stack = DevelopmentStack(None, logs=logs, only=PARTS, workers=WORKERS)
        try:
            stack.start(announce)
            servers, processes = stack.servers, stack.processes
            dsns = stack.record(None).dsns
            yield Site(
                application_dsn=dsns["application"],
                operator_dsn=dsns["operator"],
                admin_dsn=servers.postgres_dsn,
                kafka={"bootstrap.servers": servers.bootstrap_servers},
                dispatch_topic=settings.name("dispatch"),
                attempts_topic=settings.name("attempts"),
                workers=tuple(process for name, process in processes.items() if name.startswith("worker")),
                connector=processes["connector"],
                reconciler=processes["reconciler"],
                folder=folder,
                on_start=servers.watch,
            )
        finally:
            _keep_server_logs(stack, logs)
            stack.stop()


def _keep_server_logs(stack: DevelopmentStack, logs: Path) -> None:
    for log in stack.servers.logs.glob("*.log"):
        (logs / log.name).write_bytes(log.read_bytes())


@contextmanager
def _only_these_settings(values: Mapping[str, object]) -> Iterator[None]:
    """Replace the caller's OUTRIDER_ variables while the block runs: a demo is the same wherever it runs."""
    theirs = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and name != CACHE_VARIABLE}
    for name in theirs:
        del os.environ[name]
    ours = environment_of(values)
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(theirs)
