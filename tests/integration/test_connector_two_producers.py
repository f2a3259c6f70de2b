"""Two producers in turns on the real broker: what a kill between two commits, a takeover and a failure leave behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.errors import TransientError
from connectors.kafka.sink import RecordTooLargeError
from connectors.kafka.transactions import TransactionalProducer
from connectors.router import Record
from tests.support.connector_world import ConnectorWorld, wait_until, world_of
from tests.support.two_turns import KEY, ROWS, lay_down, open_sink, position, put_rows, stored

NAME = "two.turns"


@pytest.fixture
def world(settings_values: dict[str, object]) -> ConnectorWorld:
    world = world_of(settings_values)
    world.create_topics()
    # A topic without a contract, for records that say only which they are.
    admin = AdminClient({"bootstrap.servers": world.settings.kafka_bootstrap_servers})
    topic = world.settings.name("turns")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    return world


class Turns:
    """The topics of a world, as the support program takes them."""

    def __init__(self, world: ConnectorWorld) -> None:
        self.world = world
        self.bootstrap = world.settings.kafka_bootstrap_servers
        self.topic = world.settings.name("turns")
        self.positions = world.config.positions_topic
        self.id = f"{world.config.transactional_id}.{NAME}"

    def publish(self, end: int, *kill: str) -> int:
        """Run the program to this transaction; its exit status."""
        arguments = [self.bootstrap, self.topic, self.positions, self.id, str(end), *kill]
        return subprocess.run(
            [sys.executable, "-m", "tests.support.two_turns", *arguments], check=False, timeout=120
        ).returncode

    def stored(self) -> int:
        return stored(self.bootstrap, self.positions)

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.world.read("turns")]


def expected(transactions: int) -> list[bytes]:
    return [b"%d.%d" % (number, row) for number in range(1, transactions + 1) for row in range(ROWS)]


def test_invariant_11_killed_between_two_commits(world: ConnectorWorld) -> None:
    turns = Turns(world)
    published = 0
    for kill_at, when in ((1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "before")):
        assert turns.publish(100, str(kill_at), when) == -signal.SIGKILL
        # The next start fences both producers before it reads the position; this one only fences and looks.
        open_sink(turns.bootstrap, turns.topic, turns.positions, turns.id).close()
        published += kill_at if when == "after" else kill_at - 1
        assert turns.stored() == published
        assert turns.values() == expected(published)
    assert turns.publish(published + 5) == 0
    assert turns.values() == expected(published + 5)


def test_invariant_11_a_takeover_ends_both_transactions(world: ConnectorWorld) -> None:
    turns = Turns(world)
    old = open_sink(turns.bootstrap, turns.topic, turns.positions, turns.id)
    put_rows(old, turns.topic, 1)
    old.commit(position(1))
    # One transaction is not committed yet, and the next is open, when another connector takes over.
    put_rows(old, turns.topic, 2)
    taken = threading.Event()
    commit = old._turn.commit
    old._turn.commit = lambda while_waiting: (taken.wait(60), commit(while_waiting))[1]  # type: ignore[method-assign]  # held back
    old.hand_over(position(2))
    put_rows(old, turns.topic, 3)
    lay_down(old)
    new = open_sink(turns.bootstrap, turns.topic, turns.positions, turns.id)
    assert turns.stored() == 1
    put_rows(new, turns.topic, 2)
    new.commit(position(2))
    taken.set()
    with pytest.raises(TransientError, match="took over"):
        old.commit(position(3))
    old.close()
    put_rows(new, turns.topic, 3)
    new.commit(position(3))
    new.close()
    assert turns.values() == expected(3)


def test_invariant_11_nothing_is_committed_after_a_commit_that_failed(
    world: ConnectorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(world)
    sink = open_sink(turns.bootstrap, turns.topic, turns.positions, turns.id)
    commit = TransactionalProducer.commit
    handed_over = threading.Event()
    commits = 0

    def failing(producer: TransactionalProducer, while_waiting: object) -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            handed_over.wait(60)
            raise TransientError("the second commit fails")
        commit(producer, while_waiting)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(TransactionalProducer, "commit", failing)
    for number in (1, 2, 3):
        put_rows(sink, turns.topic, number)
        sink.hand_over(position(number))
    handed_over.set()
    with pytest.raises(TransientError, match="second commit"):
        sink.wait_settled()
    with pytest.raises(TransientError, match="second commit"):
        put_rows(sink, turns.topic, 4)
    sink.close()
    assert commits == 2
    assert turns.stored() == 1
    wait_until(lambda: turns.values() == expected(1), lambda: f"only the first is read: {turns.values()}")


def test_rows_are_kept_in_order_while_the_transaction_before_is_on_its_way(
    world: ConnectorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(world)
    sink = open_sink(turns.bootstrap, turns.topic, turns.positions, turns.id)
    flush = TransactionalProducer.flush
    on_its_way = threading.Event()

    def held_back(producer: TransactionalProducer, while_waiting: object) -> None:
        on_its_way.wait(60)
        flush(producer, while_waiting)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(TransactionalProducer, "flush", held_back)
    put_rows(sink, turns.topic, 1)
    sink.hand_over(position(1))
    put_rows(sink, turns.topic, 2)  # does not wait
    sink.forward()
    with pytest.raises(RecordTooLargeError):
        sink.put(turns.topic, b"key", b"x" * 2_000_000, [], 2_000_000)
    assert not sink.is_settled
    assert turns.values() == []
    on_its_way.set()
    sink.add(Record(turns.topic, KEY, b"2.3", []))
    sink.commit(position(2))
    sink.close()
    assert turns.values() == [*expected(2), b"2.3"]
