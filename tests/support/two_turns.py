"""A child process that publishes numbered transactions by two producers in turns, and kills itself on demand.

``python -m tests.support.two_turns BOOTSTRAP TOPIC POSITIONS ID END [KILL_AT before|after]`` goes on where the stored
position ends, to transaction END. KILL_AT names the commit of this process at which it is killed: before it is asked
for, or after the broker has answered. By then the records of the next transaction lie in the topic already.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from connectors.kafka.position import Position, position_key, read_position
from connectors.kafka.sink import TransactionalSink
from connectors.kafka.transactions import TransactionalProducer

ROWS = 3
KEY = b"one key"
POSITION = Position(system_id="1", timeline=1, database="d", slot="s", lsn=0, row=0)


def open_sink(bootstrap: str, topic: str, positions: str, name: str) -> TransactionalSink:
    sink = TransactionalSink(
        {"bootstrap.servers": bootstrap},
        transactional_id=name,
        positions_topic=positions,
        record_bytes_max={topic: 1_000_000, positions: 1_000_000},
        transaction_timeout_seconds=60.0,
        while_waiting=lambda: None,
    )
    sink.fence(60.0)
    return sink


def stored(bootstrap: str, positions: str) -> int:
    """The number of the last transaction that was committed."""
    found = read_position(
        {"bootstrap.servers": bootstrap},
        positions,
        position_key(POSITION.database, POSITION.slot),
        deadline_seconds=60.0,
        while_waiting=lambda: None,
    )
    return 0 if found is None else found.lsn


def put_rows(sink: TransactionalSink, topic: str, number: int) -> None:
    for row in range(ROWS):
        sink.put(topic, KEY, b"%d.%d" % (number, row), [], 10)


def lay_down(sink: TransactionalSink) -> None:
    """Wait until what was put lies in its topics, the transaction being open still."""
    if not sink._is_open:
        sink._begin()
    sink._turn.flush(lambda: None)


def position(number: int) -> Position:
    return Position(system_id="1", timeline=1, database="d", slot="s", lsn=number, row=0)


def main() -> None:
    bootstrap, topic, positions, name, end, *kill = sys.argv[1:]
    ahead = threading.Event()
    kill_at = int(kill[0]) if kill else 0
    if kill:
        _kill_at(kill_at, kill[1] == "after", ahead)
    sink = open_sink(bootstrap, topic, positions, name)
    first = stored(bootstrap, positions) + 1
    for number in range(first, int(end) + 1):
        put_rows(sink, topic, number)
        if kill and number - first == kill_at:
            lay_down(sink)
            ahead.set()
            signal.pause()
        sink.hand_over(position(number))
    sink.wait_settled()
    sink.close()


def _kill_at(number: int, is_after: bool, ahead: threading.Event) -> None:
    commit = TransactionalProducer.commit
    commits = 0

    def killed(producer: TransactionalProducer, while_waiting: Callable[[], None]) -> None:
        nonlocal commits
        commits += 1
        if commits == number and not is_after:
            ahead.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(producer, while_waiting)
        if commits == number:
            ahead.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    TransactionalProducer.commit = killed  # type: ignore[method-assign]  # in a process that is about to die


if __name__ == "__main__":
    main()
