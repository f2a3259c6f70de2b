"""The whole pipeline as processes of their own, with a fast receiver, for benchmarks of delivery."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.support.admitting import PAYLOAD, Load
from pipeline.stack.child_process import ChildProcess, Command
from pipeline.stack.development_stack import DevelopmentStack
from pipeline.stack.ports import HOST, free_ports

PARTS: Final = ("kafka", "postgres", "connector", "worker", "reconciler")
DEADLINE_SECONDS: Final = 900.0
LOOK_SECONDS: Final = 0.02
ADMITTED_AT_ONCE: Final = 1_000
STOP_SECONDS: Final = 40.0
WINDOW_DELIVERIES: Final = 100
"""More than the reconciler hands out ahead for a destination with one start a second."""

_DESTINATION = """
insert into outrider.destination (destination_id, url, allowed_networks, start_rate_per_second, burst, concurrency,
                                  timeout_seconds)
values (%(destination_id)s, %(url)s, '{127.0.0.0/8}', %(rate)s, %(burst)s, %(concurrency)s, %(timeout)s)
"""
_SECRET = """
insert into outrider.destination_secret (destination_id, secret)
values (%s, 'whsec_' || encode(sha256(%s::bytea), 'base64'))
"""
_ADMIT = """
select count(*)
from generate_series(%(first)s::integer, %(last)s::integer) n,
     lateral outrider.admit(%(prefix)s || '-' || n, 'media.processed', %(payload)b, 'application/json',
                            array[(%(destinations)s::text[])[1 + n %% %(modulus)s]])
"""


class Rig:
    """What a benchmark asks for. The worker runs when the rig is opened."""

    def __init__(self, stack: DevelopmentStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.ledger = psycopg.connect(stack.servers.postgres_dsn, autocommit=True)
        (self._port,) = free_ports(1)
        self.receiver = self._start_receiver()

    @property
    def application_dsn(self) -> str:
        return self._stack.record(None).dsns["application"]

    @property
    def worker(self) -> ChildProcess:
        return self._stack.processes["worker-1"]

    def pid(self, part: str) -> int:
        return self._stack.processes[part].pid

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self._port}/{path}"

    def add_destinations(
        self,
        names: Sequence[str],
        path: str,
        *,
        rate: float = 100_000,
        burst: int = 100_000,
        concurrency: int = 256,
        timeout: float = 30,
    ) -> None:
        for name in names:
            values = {"destination_id": name, "url": self.url(f"{path}/{name}"), "rate": rate, "burst": burst}
            self.ledger.execute(_DESTINATION, {**values, "concurrency": concurrency, "timeout": timeout})
            self.ledger.execute(_SECRET, (name, name))

    def admit_at_once(self, prefix: str, events: int, destinations: Sequence[str]) -> None:
        """Admit a backlog, a thousand events in a transaction, and wait until the connector has published it."""
        for first in range(0, events, ADMITTED_AT_ONCE):
            last = min(first + ADMITTED_AT_ONCE, events) - 1
            self.ledger.execute(
                _ADMIT,
                {
                    "first": first,
                    "last": last,
                    "prefix": prefix,
                    "payload": PAYLOAD,
                    "destinations": list(destinations),
                    "modulus": len(destinations),
                },
            )
        self.wait_published()
        self.ledger.execute("analyze outrider.delivery")

    def wait_published(self) -> None:
        row = self.ledger.execute("select pg_current_wal_lsn()").fetchone()
        assert row is not None
        self.wait(
            lambda: self._one("select bool_and(confirmed_flush_lsn >= %s) from pg_replication_slots", row[0]),
            "the connector has published what was admitted",
        )

    def run_application(self, load: Load) -> dict[str, Any]:
        return self.start_application(load)()

    def start_application(self, load: Load) -> Callable[[], dict[str, Any]]:
        """Returns at once; the result waits for the end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.admitting"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

        def result() -> dict[str, Any]:
            told, _ = process.communicate(load.encoded(), DEADLINE_SECONDS)
            if process.returncode:
                raise SystemExit(f"the application ended with exit status {process.returncode}")
            found: dict[str, Any] = json.loads(told)
            return found

        return result

    def run_bare_client(self, requests: int, concurrency: int) -> dict[str, float]:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.support.bare_client"),
                *(self.url("ok/bare"), str(requests), str(concurrency)),
            ],
            stdout=subprocess.PIPE,
            check=True,
            timeout=DEADLINE_SECONDS,
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def received(self) -> int:
        """Requests that were answered so far."""
        return int(self._ask("/count"))

    def receipts(self) -> dict[str, float]:
        """Monotonic clock of first receipts by delivery, of the timed ones since the last call."""
        found: dict[str, float] = json.loads(self._ask("/receipts"))
        return found

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {DEADLINE_SECONDS:g} s: {what}; logs are in {self._folder}")
            time.sleep(LOOK_SECONDS)

    def is_caught_up(self) -> bool:
        """No message waits for the worker, and it holds none but those of its window: all else lies in the ledger."""
        return not self._one(
            "select exists (select from outrider.delivery where state = 'enqueued' offset %s)", WINDOW_DELIVERIES
        )

    def stop_worker(self) -> None:
        self.worker.terminate(STOP_SECONDS)

    def close(self) -> None:
        self.receiver.kill()
        self.ledger.close()

    def _one(self, query: str, *parameters: object) -> Any:
        row = self.ledger.execute(query, parameters).fetchone()
        return row and row[0]

    def _ask(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def _start_receiver(self) -> ChildProcess:
        command = Command(
            arguments=[sys.executable, "-m", "benchmarks.support.fast_receiver", str(self._port)],
            environment=os.environ,
            directory=Path.cwd(),
            log=self._folder / "receiver.log",
        )
        receiver = ChildProcess("receiver", command, on_start=self._stack.servers.watch)
        receiver.start()
        self.wait(self._is_listening, "the receiver listens")
        return receiver

    def _is_listening(self) -> bool:
        try:
            self._ask("/count")
        except OSError:
            return False
        return True


@contextmanager
def opened(folder: Path, settings: dict[str, object] | None = None) -> Iterator[Rig]:
    """A pipeline with data of its own, ended after the block. Logs go to ``folder``."""
    stack = DevelopmentStack(None, logs=folder, only=PARTS, settings=settings or {})
    stack.start(lambda _: None)
    try:
        rig = Rig(stack, folder)
        try:
            yield rig
        finally:
            rig.close()
    finally:
        stack.stop()
