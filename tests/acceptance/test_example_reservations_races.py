"""examples/reservations: every schedule of two transactions that want the same reservation, by a clock that the test sets.

Whatever the order, and whoever rolls back: at most one expiry event for a version, and a confirmed one has none.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from examples.reservations.story import FOLDER
from tests.support.ledger_rows import add_destination, connect, scalar

EXPIRES_AT = datetime(2031, 5, 1, tzinfo=UTC)
"""By the reservation's clock. The delivery's is the database's, which is years behind it."""
CLOCKS = {"before": -timedelta(seconds=1), "at the end": timedelta(0), "after": timedelta(seconds=1)}
ENDS = ("commit", "rollback")
DEADLINE_SECONDS = 60.0
ORDERS = sorted(set(itertools.permutations("AABB")))

EXPIRE = """
select count(*) from reservations.expire(10, '{}', '{0,1,2,3}', 4, %(now)s) e
cross join lateral outrider.admit(e.event_id, e.event_type, convert_to(e.payload, 'UTF8')) a
"""
CONFIRM = "select reservations.confirm(%(id)s, 1, %(now)s)::integer"


@pytest.fixture(scope="module")
def ledger(module_database: str) -> Iterator[psycopg.Connection]:
    with connect(module_database) as connection:
        connection.execute((FOLDER / "schema.sql").read_bytes())
        add_destination(connection)
        connection.execute("insert into outrider.subscription values ('acme', 'reservation.*')")
        yield connection


@dataclass
class Actor:
    """One transaction: an act, and an end. Its steps run in their order, and one that waits for a lock holds up nobody else."""

    session: psycopg.Connection
    statement: str
    ending: str
    parameters: dict[str, object]
    result: int = 0
    steps: list[Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._todo: Iterator[Callable[[], None]] = iter((self._act, self._end))

    def step(self) -> None:
        self.steps.append(self._thread.submit(next(self._todo)))

    def close(self) -> None:
        self._thread.shutdown()
        for step in self.steps:
            step.result()

    @property
    def committed(self) -> int:
        """What it did, if that counts."""
        return self.result if self.ending == "commit" else 0

    def _act(self) -> None:
        row = self.session.execute(self.statement.encode(), self.parameters).fetchone()
        assert row is not None
        (self.result,) = row

    def _end(self) -> None:
        getattr(self.session, self.ending)()


def play(ledger: psycopg.Connection, actors: dict[str, Actor], order: tuple[str, ...]) -> None:
    """Take the steps in this order; the next one begins when this one is done, or waits for a lock."""
    pids = [actor.session.info.backend_pid for actor in actors.values()]

    def is_settled(actor: Actor) -> bool:
        waiting = scalar(
            ledger, "select count(*) from pg_stat_activity where pid = any (%s) and wait_event_type = 'Lock'", pids
        )
        return actor.steps[-1].done() or waiting > 0

    for name in order:
        actors[name].step()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_settled(actors[name]):
            assert time.monotonic() < deadline, f"step of {name} in {order} neither ends nor waits"
            time.sleep(0.001)
    for actor in actors.values():
        actor.close()


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("first", [CONFIRM, EXPIRE], ids=["confirm against expire", "two expirers"])
def test_every_schedule(ledger: psycopg.Connection, module_database: str, first: str, clock: str) -> None:
    now = EXPIRES_AT + CLOCKS[clock]
    outcomes = set()
    with psycopg.connect(module_database) as one, psycopg.connect(module_database) as other:
        for order, ends in itertools.product(ORDERS, itertools.product(ENDS, ENDS)):
            name = f"{time.monotonic_ns()}"
            ledger.execute("insert into reservations.reservation values (%s, 1, 'held', %s)", (name, EXPIRES_AT))
            parameters = {"id": name, "now": now}
            a = Actor(one, first, ends[0], parameters)
            b = Actor(other, EXPIRE, ends[1], parameters)
            play(ledger, {"A": a, "B": b}, order)
            state, events = look(ledger, name)
            case = (order, ends, state, events)
            assert (state == "expired") == (events == 1), case
            assert events <= 1, case
            if first == CONFIRM:
                assert (state == "confirmed") == (a.committed == 1), case
                assert a.committed + b.committed <= 1, case
                assert a.result == 0 or now < EXPIRES_AT, "confirmed after its time"
            else:
                assert a.committed + b.committed == events, case
            assert now >= EXPIRES_AT or events == 0, "expired before its time"
            outcomes.add(state)
            # Whatever was rolled back, the next look finds what is still held, once.
            sweep(ledger)
            assert look(ledger, name) == (("confirmed", 0) if state == "confirmed" else ("expired", 1)), case
            sweep(ledger)
            assert look(ledger, name)[1] <= 1
    expected = {"before": {"confirmed", "held"} if first == CONFIRM else {"held"}}
    assert outcomes == expected.get(clock, {"expired", "held"}), "the schedules differ in nothing"


def look(ledger: psycopg.Connection, name: str) -> tuple[str, int]:
    """State, and how many expiry events there are."""
    row = ledger.execute(
        "select r.state, (select count(*) from outrider.event e where e.event_id = reservations.event_id(r.reservation_id, 1)) "
        "from reservations.reservation r where r.reservation_id = %s",
        (name,),
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def sweep(ledger: psycopg.Connection) -> None:
    ledger.execute(EXPIRE.encode(), {"now": EXPIRES_AT + timedelta(hours=1)})


def test_what_is_agreed_never_changes(ledger: psycopg.Connection) -> None:
    ledger.execute("insert into reservations.reservation values ('agreed', 1, 'held', %s)", (EXPIRES_AT,))
    for change in (
        "expires_at = expires_at + interval '1 second'",
        "version = 2",
        "reservation_id = 'other'",
    ):
        with pytest.raises(psycopg.errors.CheckViolation, match="never changes"):
            ledger.execute(f"update reservations.reservation set {change} where reservation_id = 'agreed'".encode())
    assert scalar(ledger, "select reservations.confirm('agreed', 1, %s)", EXPIRES_AT - timedelta(seconds=1)) is True
    for state in ("held", "expired"):
        with pytest.raises(psycopg.errors.CheckViolation, match="for good"):
            ledger.execute("update reservations.reservation set state = %s where reservation_id = 'agreed'", (state,))


def test_a_version_that_expired_and_its_successor_have_an_event_each(ledger: psycopg.Connection) -> None:
    for version in (1, 2):
        ledger.execute("insert into reservations.reservation values ('again', %s, 'held', %s)", (version, EXPIRES_AT))
        sweep(ledger)
        sweep(ledger)
    assert (
        scalar(ledger, "select count(*) from outrider.event where event_id like 'reservation.expired [\"again\"%%'")
        == 2
    )


def test_bytes_and_delivery_know_nothing_of_the_sessions_zone_or_the_reservations_clock(
    ledger: psycopg.Connection,
) -> None:
    bodies = set()
    for zone in ("UTC", "Pacific/Auckland"):
        ledger.execute(f"set time zone '{zone}'".encode())
        bodies.add(scalar(ledger, "select reservations.body('r', 1, %s)", EXPIRES_AT))
    ledger.execute("set time zone 'UTC'")
    assert bodies == {'{"version": 1, "expires_at": "2031-05-01T00:00:00.000000Z", "reservation": "r"}'}
    ledger.execute("insert into reservations.reservation values ('clocks', 1, 'held', %s)", (EXPIRES_AT,))
    sweep(ledger)
    assert scalar(
        ledger,
        "select abs(extract(epoch from clock_timestamp() - created_at)) < 3600 and lost_after < %s from outrider.delivery "
        "where event_id = reservations.event_id('clocks', 1)",
        EXPIRES_AT,
    )
