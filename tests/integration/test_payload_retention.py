"""Payloads go when every delivery of their event is long over; identity stays, and nobody can need what is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from pipeline.ledger.migrate import migrate_down, migrate_up
from pipeline.ledger.operator import Act
from pipeline.ledger.operator_deliveries import retry
from pipeline.ledger.payloads import FIRST, old_payloads, remove_payloads
from pipeline.ledger.pool import Pool, open_pool
from pipeline.reconcile.payload_retention import sweep_payloads
from tests.fixtures.databases import fresh_database
from tests.support.ledger_rows import add_delivery, add_destination, connect, delivery, scalar, wait_until
from tests.support.program import Outrider, program

KEEP_DAYS = 90
ACT = Act("ada", "test")
LEFT = "select array_agg(event_id order by event_id) from outrider.event where payload is not null"
ADMIT = "select created from outrider.admit(%s, 'test.event', %s, destinations => %s)"


@pytest.fixture
def ledger(module_database: str) -> Iterator[psycopg.Connection]:
    """Emptied for each test."""
    with connect(module_database) as connection:
        yield connection
        connection.execute(
            "truncate outrider.event, outrider.destination, outrider.dispatch_outbox, outrider.run cascade"
        )


@pytest.fixture
async def pool(
    ledger: psycopg.Connection, module_database: str, login_roles: dict[str, tuple[str, str]]
) -> AsyncIterator[Pool]:
    user, password = login_roles["reconciler"]
    async with open_pool(psycopg.conninfo.make_conninfo(module_database, user=user, password=password), 2, "t") as pool:
        yield pool


def add_old(
    ledger: psycopg.Connection, event_id: str, state: str, *, days: int = 100, settled_days: int | None = None
) -> str:
    """A delivery of an event that was admitted and, where terminal, settled so long ago."""
    delivery_id = add_delivery(ledger, event_id, state)
    ledger.execute(
        "update outrider.event set admitted_at = now() - make_interval(days => %s) where event_id = %s",
        (days, event_id),
    )
    ledger.execute(
        "update outrider.delivery set settled_at = now() - make_interval(days => %s) "
        "where delivery_id = %s and settled_at is not null",
        (days if settled_days is None else settled_days, delivery_id),
    )
    return delivery_id


async def test_only_what_is_over_for_long_enough_loses_its_payload(pool: Pool, ledger: psycopg.Connection) -> None:
    add_destination(ledger)
    add_destination(ledger, "other")
    for state in ("succeeded", "dead", "pending", "enqueued", "leased"):
        add_old(ledger, f"old {state}", state)
    add_old(ledger, "new succeeded", "succeeded", days=89)
    add_old(ledger, "settled lately", "succeeded", settled_days=89)
    add_old(ledger, "half open", "succeeded")
    ledger.execute(ADMIT, ("half open", b"body", ["other"]))
    ledger.execute("select outrider.admit('to nobody', 'test.event', 'body')")
    ledger.execute("update outrider.event set admitted_at = now() - interval '1 year' where event_id = 'to nobody'")
    deliveries = ledger.execute("select * from outrider.delivery order by delivery_id").fetchall()

    assert await sweep_payloads(pool, keep_days=KEEP_DAYS, page_rows=2) == 3
    assert scalar(ledger, LEFT) == [
        "half open", "new succeeded", "old enqueued", "old leased", "old pending", "settled lately",
    ]  # fmt: skip
    hashes = "select count(*) from outrider.event where payload_sha256 = sha256('body') and content_type <> ''"
    assert scalar(ledger, hashes) == 9
    assert ledger.execute("select * from outrider.delivery order by delivery_id").fetchall() == deliveries
    assert ledger.execute("select kind, counts, finished_at is not null, error from outrider.run").fetchall() == [
        ("payload.retention", {"removed": 3}, True, None)
    ]
    # Nothing more to do leaves no run.
    assert await sweep_payloads(pool, keep_days=KEEP_DAYS, page_rows=2) == 0
    assert scalar(ledger, "select count(*) from outrider.run") == 1


async def test_the_identity_stays_taken(pool: Pool, ledger: psycopg.Connection) -> None:
    add_destination(ledger)
    add_destination(ledger, "other")
    add_old(ledger, "e", "succeeded")
    assert await sweep_payloads(pool, keep_days=KEEP_DAYS) == 1

    assert ledger.execute(ADMIT, ("e", b"body", ["acme"])).fetchall() == [(False,)]
    for other in (b"other", b""):
        with pytest.raises(psycopg.Error, match="admitted before with another payload"):
            ledger.execute(ADMIT, ("e", other, ["acme"]))
    assert scalar(ledger, LEFT) is None
    many = "select created, refusal from outrider.admit_many(%s, %s)"
    event = {"event_id": "e", "event_type": "test.event", "content_type": "application/json", "headers": {},
             "destinations": ["acme"]}  # fmt: skip
    answers = [ledger.execute(many, (json.dumps([event]), [body])).fetchall() for body in (b"body", b"other")]
    assert answers == [[(False, None)], [(False, "OU001")]]

    # A destination that is new to it gets the bytes, which this call has brought back.
    assert ledger.execute(ADMIT, ("e", b"body", ["other"])).fetchall() == [(True,)]
    assert ledger.execute("select payload, payload_removed_at from outrider.event").fetchall() == [(b"body", None)]
    sent = "select payload from outrider.dispatch_outbox where destination_id = 'other'"
    assert scalar(ledger, sent) == b"body"


async def test_what_has_nothing_to_send_is_not_dispatched_again(
    *,
    pool: Pool,
    ledger: psycopg.Connection,
    module_database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    login_roles: dict[str, tuple[str, str]],
) -> None:
    add_destination(ledger)
    gone = add_old(ledger, "gone", "dead")
    kept = add_old(ledger, "kept", "dead", settled_days=1)
    assert await sweep_payloads(pool, keep_days=KEEP_DAYS) == 1
    before = delivery(ledger, gone)
    user, password = login_roles["operator"]
    dsn = psycopg.conninfo.make_conninfo(module_database, user=user, password=password)
    outrider: Outrider = program(monkeypatch, capsys, postgres_dsn=dsn)

    plan_path = tmp_path_factory.mktemp("plans") / "plan"
    plan = outrider("replay", "plan", "--ledger", "--mode", "failed", "--out", str(plan_path), "--json").json
    assert {row["verdict"]: row["deliveries"] for row in plan["counts"]} == {"replay": 1, "payload_removed": 1}
    shown = outrider("delivery", "show", gone)
    assert "removed at 20" in shown.stdout
    counted = outrider("delivery", "retry", "--dead", "--destination", "acme", "--reason", "test").stdout
    assert "would retry 1 dead" in counted

    with connect(dsn) as operator:
        assert retry(operator, [gone, kept], ACT, force=True) == [kept]
    assert delivery(ledger, gone) == before
    release = "update outrider.delivery set state = 'pending', next_attempt_at = now(), settled_at = null where delivery_id = %s"
    assert ledger.execute(release, (gone,)).rowcount == 0
    found = "select finding from outrider.rebuild_findings(%s, array[%s::bytea])"
    message = {"place": 1, "delivery_id": scalar(ledger, "select outrider.delivery_identity('gone', 'new')"),
               "destination_id": "new", "event_id": "gone", "event_type": "test.event",
               "content_type": "application/json", "dispatch_seq": 1}  # fmt: skip
    add_destination(ledger, "new")
    message["message_id"] = str(scalar(ledger, "select outrider.message_identity(%s, 1)", message["delivery_id"]))
    assert [scalar(ledger, found, json.dumps([message]), body) for body in (b"body", b"other")] == [
        "payload_removed", "other_event",
    ]  # fmt: skip


async def test_a_retry_and_retention_come_one_after_the_other(
    pool: Pool, ledger: psycopg.Connection, module_database: str
) -> None:
    add_destination(ledger)
    first, second, third = (add_old(ledger, name, "dead") for name in ("first", "second", "third"))

    # While a retry has not committed, its event is passed over.
    with connect(module_database) as operator, operator.transaction():
        assert retry(operator, [first], ACT, force=False) == [first]
        async with pool.connection() as connection, connection.transaction():
            places = await old_payloads(connection, keep_days=KEEP_DAYS, after=FIRST, limit=10)
            assert [place.event_id for place in places] == ["first", "second", "third"]
            assert await remove_payloads(connection, ["first"], keep_days=KEEP_DAYS) == 0
    # It has committed after the page was read.
    async with pool.connection() as connection, connection.transaction():
        assert await remove_payloads(connection, ["first"], keep_days=KEEP_DAYS) == 0

    # While retention has not committed, a retry waits, and then moves nothing.
    with connect(module_database) as operator:
        async with pool.connection() as connection, connection.transaction():
            assert await remove_payloads(connection, ["second"], keep_days=KEEP_DAYS) == 1
            pid = operator.info.backend_pid
            retrying = asyncio.create_task(asyncio.to_thread(retry, operator, [second, third], ACT, force=False))
            waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
            await asyncio.to_thread(wait_until, lambda: bool(scalar(ledger, waits, pid)), "the retry waits")
        assert await retrying == [third]
    assert delivery(ledger, second)["state"] == "dead"
    unsendable = (
        "select count(*) from outrider.delivery d join outrider.event e using (event_id) "
        "where d.settled_at is null and e.payload is null"
    )
    assert scalar(ledger, unsendable) == 0


def test_the_migration_keeps_hashes_and_is_not_undone_over_removed_payloads(postgres_dsn: str) -> None:
    with fresh_database(postgres_dsn, template="template0") as dsn:
        migrate_up(dsn)
        migrate_down(dsn, 16)
        with connect(dsn) as connection:
            add_destination(connection)
            add_delivery(connection, "before", "succeeded")
            migrate_up(dsn)
            add_delivery(connection, "after", "succeeded")
            assert scalar(connection, "select count(*) from outrider.event where payload_sha256 = sha256('body')") == 2
            migrate_down(dsn, 16)
            assert scalar(connection, "select count(*) from outrider.event where payload_sha256 = sha256('body')") == 2
            migrate_up(dsn)
            connection.execute("update outrider.event set payload = null, payload_removed_at = now()")
            with pytest.raises(Exception, match="payloads were removed"):
                migrate_down(dsn, 16)
