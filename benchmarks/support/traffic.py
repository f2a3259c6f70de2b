"""Steady traffic by processes of their own: rows for the outbox, a busy table beside it, and a reader with a clock.

Each row carries the monotonic clock from before it was sent to PostgreSQL, which all processes of a machine share. So
a latency includes the insert and its commit.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final

import psycopg
from confluent_kafka import TopicPartition

from benchmarks.support.outbox import PAYLOAD_BYTES, Outbox, reader, wait

STAMP_DIGITS: Final = 20
WARM_UP_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.3
FOREIGN_BATCH_ROWS: Final = 100
_SPAWN = multiprocessing.get_context("spawn")

_INSERT = """
insert into outrider.dispatch_outbox (message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type,
                                      content_type, headers, payload, reason)
values (gen_random_uuid(), %s, 1, %s, 'event', 'media.processed', 'application/json', '{}', %b, 'admitted')
"""


@dataclass(frozen=True, slots=True)
class Arrival:
    """``sent_ns`` before the insert, ``read_ns`` when the reader had it."""

    sent_ns: int
    read_ns: int


class Reader:
    """What a reader of committed records has seen so far, and all of it at the end."""

    def __init__(self, latest: Synchronized[int], results: Connection, stop: Event) -> None:
        self._latest = latest
        self._results = results
        self._stop = stop

    @property
    def latest_sent_ns(self) -> int:
        """The clock of the newest row that was read; 0 before any."""
        return int(self._latest.value)

    def arrivals(self) -> list[Arrival]:
        """End the reader."""
        self._stop.set()
        return [Arrival(*pair) for pair in self._results.recv()]


@contextmanager
def reading(outbox: Outbox, topic: str) -> Iterator[Reader]:
    """A reader from the topic's end on."""
    latest, stop, ready = _SPAWN.Value("q", 0), _SPAWN.Event(), _SPAWN.Event()
    results, sender = _SPAWN.Pipe(duplex=False)
    ends = [(end.topic, end.partition, end.offset) for end in outbox.ends(topic)]
    process = _SPAWN.Process(
        target=_read, args=(outbox.stack.bootstrap_servers, ends, latest, sender, ready, stop), daemon=True
    )
    process.start()
    ready.wait(60)
    try:
        yield Reader(latest, results, stop)
    finally:
        stop.set()
        process.join(30)


@contextmanager
def writing(outbox: Outbox, rows_per_second: float) -> Iterator[Connection]:
    """One row a transaction, at this rate. When the block is left, the pipe gives how many rows there were."""
    with _traffic(_write, outbox.stack.postgres_dsn, rows_per_second) as results:
        yield results


@contextmanager
def foreign_traffic(outbox: Outbox, rows_per_second: float) -> Iterator[Connection]:
    """Changes of a table that no publication names. When the block is left, the pipe gives the rate that was held."""
    outbox.connection.execute("create table if not exists public.foreign_load (id bigint, filler text)")
    with _traffic(_write_foreign, outbox.stack.postgres_dsn, rows_per_second) as results:
        yield results


def catch_up(outbox: Outbox, topic: str) -> None:
    """Wait until whoever writes the topic has published all that is committed now."""
    with reading(outbox, topic) as into:
        sent_ns = time.monotonic_ns()
        with outbox.connection.transaction():
            for number in range(16):
                payload = b"%0*d" % (STAMP_DIGITS, sent_ns)
                outbox.connection.execute(_INSERT, [f"last-{number}", f"destination-{number}", payload])
        wait(lambda: into.latest_sent_ns >= sent_ns)
        time.sleep(SETTLE_SECONDS)
        into.arrivals()


def latencies_ms(outbox: Outbox, topic: str, rows_per_second: float, seconds: float) -> list[float]:
    """From before the insert to the reader, sorted; a warm-up is left out."""
    catch_up(outbox, topic)
    with reading(outbox, topic) as into:
        with writing(outbox, rows_per_second) as written:
            time.sleep(WARM_UP_SECONDS)
            begun_ns = time.monotonic_ns()
            time.sleep(seconds)
        rows, last_sent_ns = written.recv()
        wait(lambda: into.latest_sent_ns >= last_sent_ns)
        time.sleep(SETTLE_SECONDS)  # other partitions may hold a few earlier ones
        arrivals = into.arrivals()
    if len(arrivals) != rows:
        raise SystemExit(f"{len(arrivals)} rows were read of {rows}")
    return sorted((row.read_ns - row.sent_ns) / 1e6 for row in arrivals if row.sent_ns >= begun_ns)


@contextmanager
def _traffic(target: object, dsn: str, rows_per_second: float) -> Iterator[Connection]:
    stop, started = _SPAWN.Event(), _SPAWN.Event()
    results, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=target, args=(dsn, rows_per_second, sender, started, stop), daemon=True)  # type: ignore[arg-type]  # one of the two below
    process.start()
    started.wait(60)
    try:
        yield results
    finally:
        stop.set()
        process.join(60)


# --- the processes --------------------------------------------------------------------------


def _write(dsn: str, rows_per_second: float, results: Connection, started: Event, stop: Event) -> None:
    filler = b"x" * (PAYLOAD_BYTES - STAMP_DIGITS)
    rows = sent_ns = 0
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        started.set()
        begun = time.monotonic()
        while not stop.is_set():
            due = begun + rows / rows_per_second - time.monotonic()
            if due > 0:
                time.sleep(due)
            sent_ns = time.monotonic_ns()
            payload = b"%0*d" % (STAMP_DIGITS, sent_ns) + filler
            connection.execute(_INSERT, [f"delivery-{rows}", f"destination-{rows % 16}", payload])
            rows += 1
    results.send((rows, sent_ns))


def _write_foreign(dsn: str, rows_per_second: float, results: Connection, started: Event, stop: Event) -> None:
    insert = (
        f"insert into public.foreign_load select n, repeat('x', 100) from generate_series(1, {FOREIGN_BATCH_ROWS}) n"
    )
    batches = 0
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        started.set()
        begun = time.monotonic()
        while not stop.is_set():
            due = begun + batches * FOREIGN_BATCH_ROWS / rows_per_second - time.monotonic()
            if due > 0:
                time.sleep(due)
            connection.execute(insert)
            batches += 1
        results.send(batches * FOREIGN_BATCH_ROWS / (time.monotonic() - begun))


def _read(  # noqa: PLR0917  # the arguments of a process
    bootstrap_servers: str,
    ends: list[tuple[str, int, int]],
    latest: Synchronized[int],
    results: Connection,
    ready: Event,
    stop: Event,
) -> None:
    consumer = reader(bootstrap_servers)
    consumer.assign([TopicPartition(*end) for end in ends])
    found: list[tuple[int, int]] = []
    at_end: set[int | None] = set()
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            at_end.add(message.partition())
            if len(at_end) == len(ends):
                ready.set()
            continue
        read_ns = time.monotonic_ns()
        stamp = (message.value() or b"")[:STAMP_DIGITS]
        sent_ns = int(stamp) if stamp.isdigit() else 0  # rows of a backlog carry none
        found.append((sent_ns, read_ns))
        latest.value = max(latest.value, sent_ns)
    consumer.close()
    results.send(found)
