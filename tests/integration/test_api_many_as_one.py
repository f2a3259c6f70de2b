"""``outrider.admit_many`` does what as many calls of ``outrider.admit`` do, row by row and refusal by refusal."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from pipeline.admission.admit import admit_sync
from pipeline.admission.errors import AdmissionError
from pipeline.ledger.admission import Admitted, EventToAdmit, Refused, admit_many
from pipeline.ledger.pool import Connection, open_pool
from tests.fixtures.databases import fresh_database
from tests.support.ledger_rows import add_destination, connect

LATER = datetime(2999, 1, 1, tzinfo=UTC)
ROUNDS, EVENTS = 20, 40
# Everything that admission writes, but for clocks and sequences.
CONTENT = (
    "select event_id, event_type, content_type, payload, headers, by_subscription from outrider.event order by event_id",
    """select delivery_id, event_id, destination_id, state, attempt, dispatch_seq, deliver_at, waiting_reason,
              next_attempt_at is null, lost_after is null
       from outrider.delivery order by delivery_id""",
    """select message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload,
              reason
       from outrider.dispatch_outbox order by message_id""",
)


@dataclass(frozen=True, slots=True)
class Twins:
    many: Connection
    one: psycopg.Connection

    def contents(self) -> Iterator[tuple[list[Any], str]]:
        for statement in CONTENT:
            yield self.one.execute(statement.encode()).fetchall(), statement


def prepare(connection: psycopg.Connection) -> None:
    for name in ("a", "b", "c"):
        add_destination(connection, name)
    add_destination(connection, "off", enabled=False)
    connection.execute(
        "insert into outrider.subscription values ('a', 'x.*'), ('b', 'x.y'), ('b', 'x.y.*'), ('off', 'x.y.z'), ('c', 'x')"
    )
    connection.execute("update outrider.ledger_setting set payload_bytes_max = 100, destinations_max = 3")


@pytest.fixture
async def twins(database: str, postgres_dsn: str, migrated_template: str) -> AsyncIterator[Twins]:
    """Two databases alike: one for many at once, one for the same events one by one."""
    with (
        fresh_database(postgres_dsn, template=migrated_template) as other,
        connect(database) as admin,
        connect(other) as one,
    ):
        prepare(admin)
        prepare(one)
        async with open_pool(database, 1, "test") as pool, pool.connection() as many:
            yield Twins(many, one)


GOOD: dict[str, list[Any]] = {
    "event_id": [f"e{number}" for number in range(500)],
    "event_type": ["x.y", "x.y.z", "x", "other"],
    "payload": [b"", b"1", b"2"],
    "content_type": ["a/b"],
    "headers": [{}, {"ce-id": "1", "ce-x": "v"}, {"x-a": 'q"\\'}],
    "destinations": [None, ("a",), ("b", "a"), ("a", "a")],
    "deliver_at": [None, None, LATER],
}
BAD: dict[str, list[Any]] = {
    "event_id": ["", "x" * 513],
    "event_type": ["", "x.*", "t" * 257, "a\nb"],
    "payload": [b"1" * 101],
    "content_type": ["", "ż", "a" * 257],
    "headers": [{"host": "x"}, {"ce-a": "\x7f"}, {f"ce-{n}": "" for n in range(33)}, {"ce-" + "a" * 126: "v"}],
    "destinations": [(), ("nobody",), ("a", "off"), ("off",), ("a", "b", "c", "a")],
}


def an_event(source: random.Random) -> EventToAdmit:
    """Mostly good, from so few ids that many repeat or contradict one another; else with one member that is not."""
    members = {name: source.choice(values) for name, values in GOOD.items()}
    if source.random() < 0.3:
        name = source.choice(list(BAD))
        members[name] = source.choice(BAD[name])
    return EventToAdmit(**members)


def alone(connection: psycopg.Connection, event: EventToAdmit) -> Admitted | Refused:
    try:
        with connection.transaction():
            made = admit_sync(
                connection,
                event_id=event.event_id,
                event_type=event.event_type,
                payload=event.payload,
                content_type=event.content_type,
                destinations=event.destinations,
                deliver_at=event.deliver_at,
                headers=event.headers,
            )
    except AdmissionError as error:
        return Refused(error.sqlstate, str(error), error.hint)
    return Admitted(tuple(made))  # type: ignore[arg-type]  # the same members


def plain(answer: Admitted | Refused) -> object:
    if isinstance(answer, Refused):
        return answer
    return [(d.delivery_id, d.destination_id, d.created, d.state) for d in answer.deliveries]


@pytest.mark.parametrize("seed", range(3))
async def test_many_at_once_are_as_many_alone(twins: Twins, seed: int) -> None:
    source = random.Random(seed)
    kinds = set()
    for _ in range(ROUNDS):
        # With an id only once in a call: repeats within one call are taken in another order, which may be seen.
        events = list({event.event_id: event for event in (an_event(source) for _ in range(EVENTS))}.values())
        together = await admit_many(twins.many, events)
        for event, answer in zip(events, together, strict=True):
            expected = alone(twins.one, event)
            assert plain(answer) == plain(expected), event
            kinds.add(expected.sqlstate if isinstance(expected, Refused) else len(expected.deliveries))
    for rows, statement in twins.contents():
        assert await (await twins.many.execute(statement.encode())).fetchall() == rows
    assert {"OU001", "OU002", "OU003", "OU004", "OU005", 0, 1, 2} <= kinds


async def test_the_first_of_those_with_one_id_counts(twins: Twins) -> None:
    def event(payload: bytes) -> EventToAdmit:
        return EventToAdmit(
            event_id="e", event_type="x", payload=payload, content_type="a/b", headers={}, destinations=("a",),
            deliver_at=None,
        )  # fmt: skip

    first, repeat, other = await admit_many(twins.many, [event(b"1"), event(b"1"), event(b"2")])
    assert isinstance(first, Admitted)
    assert isinstance(repeat, Admitted)
    assert isinstance(other, Refused)
    assert (first.deliveries[0].created, repeat.deliveries[0].created, other.sqlstate) == (True, False, "OU001")
