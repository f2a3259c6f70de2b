"""examples/analytics on a real topic: what it counts, and that neither crashes nor moved offsets change it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import duckdb
import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from examples.analytics.group import AnalyticsGroup
from examples.analytics.store import Minute, Store, StoreError
from tests.support.attempt_records import PARTITIONS, AttemptsTopic, attempt_record
from tests.support.delivery_world import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEEP = timedelta(days=36_500)
DEADLINE_SECONDS = 60.0


class Analytics:
    """The example on one topic and file."""

    def __init__(self, bootstrap_servers: str, prefix: str, folder: Path) -> None:
        self.topic = AttemptsTopic(bootstrap_servers, prefix)
        self.name = f"{prefix}.analytics"
        self.path = folder / "analytics.duckdb"
        self.said: list[str] = []
        self._bootstrap_servers = bootstrap_servers

    @contextmanager
    def member(self) -> Iterator[tuple[AnalyticsGroup, Store]]:
        """A member, which has left the group and closed its file afterwards."""
        store = Store(self.path)
        group = AnalyticsGroup(
            {"bootstrap.servers": self._bootstrap_servers},
            topic=self.topic.name,
            group=self.name,
            store=store,
            keep=KEEP,
            say=self.said.append,
        )
        try:
            yield group, store
        finally:
            group.close()
            store.close()

    @contextmanager
    def file(self) -> Iterator[Store]:
        """Its file, while nobody reads into it."""
        store = Store(self.path)
        try:
            yield store
        finally:
            store.close()

    def read(self) -> tuple[int, list[Minute]]:
        """Read to the end; how many messages that were, and the minutes."""
        with self.member() as (group, store):
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not group.is_at_end:
                assert time.monotonic() < deadline, "the end of the topic is not reached"
                group.step()
            return group.messages, store.minutes(10_000)

    def command(self, *more: str) -> list[str]:
        run = ["run", "--bootstrap-servers", self._bootstrap_servers, "--topic", self.topic.name, "--group", self.name]
        return [
            sys.executable,
            "-m",
            "examples.analytics",
            *run,
            "--store",
            str(self.path),
            "--keep-days",
            "36500",
            *more,
        ]

    def committed(self) -> dict[int, int]:
        reader = Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": self.name})
        try:
            places = [TopicPartition(self.topic.name, number) for number in range(PARTITIONS)]
            return {place.partition: place.offset for place in reader.committed(places, timeout=30)}
        finally:
            reader.close()

    def move(self, offset: int) -> None:
        """Put the group at one offset in each partition, as an operator does."""
        mover = Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": self.name})
        try:
            places = [TopicPartition(self.topic.name, number, offset) for number in range(PARTITIONS)]
            mover.commit(offsets=places, asynchronous=False)
        finally:
            mover.close()


@pytest.fixture
def analytics(bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Analytics:
    return Analytics(bootstrap_servers, topic_prefix, tmp_path)


def expected(numbers: range) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(attempts, succeeded) by minute, destination and type, counted without a database."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for number in numbers:
        attempt = attempt_record(number)
        place = (attempt.started_at[:16], attempt.destination_id, attempt.event_type)
        attempts, succeeded = found.get(place, (0, 0))
        found[place] = attempts + 1, succeeded + (attempt.result == "succeeded")
    return found


def counted(minutes: list[Minute]) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {
        (row.minute.isoformat()[:16], row.destination_id, row.event_type): (row.attempts, row.succeeded)
        for row in minutes
    }


def test_minutes_are_what_the_topic_says_and_reading_goes_on_behind_them(analytics: Analytics) -> None:
    analytics.topic.publish(attempt_record(number) for number in range(400))
    analytics.topic.publish([attempt_record(9_999)], commit=False)
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (400, expected(range(400)))
    assert {row.success_rate for row in minutes} == {row.succeeded / row.attempts for row in minutes}
    analytics.topic.publish(attempt_record(number) for number in range(400, 500))
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (100, expected(range(500)))


def test_percentiles_retries_and_late_results(analytics: Analytics) -> None:
    one = {"destination_id": "d", "event_type": "t", "delivery_id": "dlv", "started_at": "2026-11-30T12:00:00.5Z"}
    analytics.topic.publish(
        [
            *(
                attempt_record(n, **{**one, "delivery_id": f"dlv_{n}"}, result="succeeded", duration_seconds=n)
                for n in range(1, 100)
            ),
            attempt_record(100, **one, result="lease_expired", duration_seconds=900),
            attempt_record(101, **one, result="late", duration_seconds=100),
            attempt_record(102, **one, attempt=2, result="succeeded", duration_seconds=50),
        ]
    )
    (minute,) = analytics.read()[1]
    assert (minute.attempts, minute.succeeded) == (101, 100), "a lease that ended and its late result are one attempt"
    assert minute.p50_seconds == pytest.approx(50, abs=1)
    assert minute.p99_seconds == pytest.approx(99, abs=1), "nobody knows how long a lease's request took"


class CrashError(Exception):
    pass


def crash(*_: object) -> None:
    raise CrashError


def crash_within(write: Callable[..., None]) -> Callable[..., None]:
    """The last statement of the rows' transaction fails."""

    def write_some(topic: str, attempts: object, defects: object, _: object) -> None:
        with pytest.raises(duckdb.Error):
            write(topic, attempts, defects, {0: "no offset"})
        raise CrashError

    return write_some


@pytest.mark.parametrize("at", ["before the rows", "within the rows", "before the offsets"])
def test_a_crash_anywhere_neither_loses_nor_repeats(
    analytics: Analytics, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    analytics.topic.publish(attempt_record(number) for number in range(300))
    with analytics.member() as (group, store):
        match at:
            case "before the rows":
                monkeypatch.setattr(store, "write", crash)
            case "within the rows":
                monkeypatch.setattr(store, "write", crash_within(store.write))
            case _:
                monkeypatch.setattr(group, "_commit", crash)
        wait_until(lambda: crashes(group), "there is something to read")
    assert set(analytics.committed().values()) == {-1001}, "nothing was committed to Kafka"
    with analytics.file() as store:
        rows = sum(row.attempts for row in store.minutes(10_000))
        assert rows > 0 if at == "before the offsets" else rows == 0
    assert counted(analytics.read()[1]) == expected(range(300))


def crashes(group: AnalyticsGroup) -> bool:
    """Whether the next step does."""
    try:
        group.step()
    except CrashError:
        return True
    return False


def test_a_member_that_is_killed_goes_on_where_its_file_ends(analytics: Analytics, tmp_path: Path) -> None:
    properties = tmp_path / "kafka.properties"
    properties.write_text("# A killed member counts as alive for so long.\nsession.timeout.ms = 1500\n")
    analytics.topic.publish(attempt_record(number) for number in range(200))
    command = analytics.command("--kafka-properties", str(properties))
    killed = subprocess.Popen(command, cwd=ROOT, env={**os.environ}, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: sum(max(offset, 0) for offset in analytics.committed().values()) >= 200, "it has read")
        analytics.topic.publish(attempt_record(number) for number in range(200, 400))
    finally:
        killed.kill()
        killed.wait(30)
    page = tmp_path / "page.html"
    done = subprocess.run(
        [*command, "--until-end", "--plot", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "<svg" in page.read_text(encoding="utf-8")
    with analytics.file() as store:
        assert counted(store.minutes(10_000)) == expected(range(400))


def test_a_group_that_was_moved_back_reads_again_and_one_moved_ahead_misses_nothing(analytics: Analytics) -> None:
    analytics.topic.publish(attempt_record(number) for number in range(100))
    analytics.read()
    analytics.move(0)
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (100, expected(range(100)))
    assert any("reading these messages again" in line for line in analytics.said)
    analytics.topic.publish(attempt_record(number) for number in range(100, 200))
    analytics.move(10_000)
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (100, expected(range(200)))


def test_without_its_file_it_reads_the_topic_from_the_beginning(analytics: Analytics) -> None:
    analytics.topic.publish(attempt_record(number) for number in range(100))
    analytics.read()
    analytics.path.unlink()
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (100, expected(range(100)))


def test_messages_that_are_no_attempts_are_kept_apart_and_do_not_stop_it(analytics: Analytics) -> None:
    huge = attempt_record(1, attempt_id=2**70)
    far = attempt_record(1, recorded_at="0001-01-01T00:00:00+14:00")
    broken = (b"{", b"\xff", b'{"attempt_id": 1}', b"", *(msgspec.json.encode(attempt) for attempt in (huge, far)))
    analytics.topic.publish_foreign(*broken)
    analytics.topic.publish([attempt_record(7)])
    _, minutes = analytics.read()
    assert sum(row.attempts for row in minutes) == 1
    with analytics.file() as store:
        assert store.defects() == 6


def test_a_member_that_leaves_at_once_has_done_nothing(analytics: Analytics) -> None:
    analytics.topic.publish(attempt_record(number) for number in range(10))
    for _ in range(3):
        with analytics.member():
            pass
    read, minutes = analytics.read()
    assert (read, counted(minutes)) == (10, expected(range(10)))


def test_the_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    program = "import sys, time; from pathlib import Path; from examples.analytics.store import Store; "
    program += "s = Store(Path(sys.argv[1])); print('open', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=r"a\.duckdb cannot be opened"):
            Store(path)
    finally:
        holder.kill()
        holder.wait(30)
        if holder.stdout is not None:
            holder.stdout.close()
