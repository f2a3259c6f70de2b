"""Kafka or PostgreSQL is restarted in the middle of a replay or of a report. Who reads goes on when Kafka is there again, unless
that takes too long; who lost its session ends with one line, and started again does what is left, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.offsets import read_messages
from pipeline.replay import dispatching, topic_scan
from pipeline.report import topic_reading
from pipeline.stack.embedded import EmbeddedStack
from tests.support.delivery_world import World, opened
from tests.support.program import Outrider
from tests.support.replay_world import dispatches, planned

DELIVERIES = 40
PART = 10
PAYLOAD_BYTES = 90_000
BATCH = 5
"""So that the middle of a run lies between its beginning and its end."""


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        yield world


@pytest.fixture
def restart(embedded_stack: EmbeddedStack, world: World, database: str) -> Callable[[str], None]:
    """Kill a server and start it again."""

    def restart(server: str) -> None:
        if server == "kafka":
            embedded_stack.kafka.kill()
            embedded_stack.kafka.start()
        else:
            embedded_stack.postgres.kill()
            embedded_stack.postgres.start()
            world.ledger.close()
            world.ledger = psycopg.connect(database, autocommit=True)

    return restart


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, act: Callable[[], None]) -> None:
    """Let something happen in front of the n-th call of a function."""
    real, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            act()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)


def run_id_of(world: World) -> str:
    """Of the only run."""
    ((run_id,),) = world.ledger.execute("select run_id from outrider.replay").fetchall()
    return str(run_id)


def admitted_in_parts(world: World) -> list[str]:
    """In transactions that are so large that a client gets them one by one."""
    ids = []
    for number in range(DELIVERIES):
        ids += world.admit(f"e{number}", "acme", payload=b"x" * PAYLOAD_BYTES)
        if len(ids) % PART == 0:
            world.publish()
    return ids


def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what the client fetches ahead: what it holds already needs no broker."""
    for owner, name, value in (
        (topic_scan, "BATCH", BATCH),
        (topic_scan, "QUEUED_MESSAGES", 1),
        (dispatching, "PAGE_ROWS", BATCH),
    ):
        monkeypatch.setattr(owner, name, value)


def test_a_replay_goes_on_over_restarts_and_dispatches_each_once(
    outrider: Outrider,
    world: World,
    restart: Callable[[str], None],
    *,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ids = admitted_in_parts(world)
    planned(outrider, tmp_path / "plan", "--topic")
    small_batches(monkeypatch)

    # Kafka, while the run reads: it waits, and reads on.
    once(monkeypatch, topic_scan.TopicScan, "commit", 2, lambda: restart("kafka"))
    # PostgreSQL, while the run reads: its session is gone.
    once(monkeypatch, topic_scan.TopicScan, "commit", 4, lambda: restart("postgres"))
    # And while it dispatches.
    once(monkeypatch, dispatching, "_page", 3, lambda: restart("postgres"))

    ended = outrider("replay", "run", str(tmp_path / "plan"), "--reason", "r")
    run_id = run_id_of(world)
    for phase in ("select", "dispatch"):
        assert ended.exit_code == 1
        assert ended.stderr.endswith(f"outrider replay resume {run_id} goes on\n")
        assert "Traceback" not in ended.stderr
        standing = world.ledger.execute("select phase from outrider.replay").fetchone()
        assert standing == (phase,)
        ended = outrider("replay", "resume", run_id, "--reason", "r")
    assert ended.exit_code == 0, ended.stderr
    assert world.ledger.execute("select verdict, count(*) from outrider.replay_item group by 1").fetchall() == [
        ("replayed", DELIVERIES)
    ]
    assert all(dispatches(world, i) == [(1, "admitted"), (2, "replay")] for i in ids)


def test_a_report_that_loses_a_server_ends_with_a_line_and_begins_anew(
    outrider: Outrider,
    world: World,
    embedded_stack: EmbeddedStack,
    restart: Callable[[str], None],
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admitted_in_parts(world)

    def interrupted(act: Callable[[], None]) -> str:
        with monkeypatch.context() as patch:
            # What the client holds already needs no broker.
            patch.setattr(read_messages, "QUEUED_MESSAGES", 1)
            patch.setattr(read_messages, "FETCH_BYTES", 1_000_000)
            patch.setattr(read_messages, "SILENCE_SECONDS", 1.0)
            once(patch, topic_reading, "copy_message", DELIVERIES // 2, act)
            ended = outrider("reconcile", "report")
        assert (ended.exit_code, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
        return ended.stderr

    try:
        said = interrupted(embedded_stack.kafka.kill)
    finally:
        embedded_stack.kafka.restart()
    assert said.startswith("outrider: Kafka has given no message for 1 s, and there are some left")
    assert interrupted(lambda: restart("postgres")).startswith("outrider: PostgreSQL: ")
    assert "no difference" in outrider("reconcile", "report").stdout
