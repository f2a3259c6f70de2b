"""The store on a real server: whoever changes, removes or puts in a row is told of by verify, with the place."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pipeline.audit.verify import verify
from pipeline.ledger.audit import COLUMNS as AUDIT_COLUMNS
from pipeline.ledger.audit import AuditRecord, ensure_audit_partitions, record_messages
from pipeline.ledger.queries import query
from tests.fixtures.databases import fresh_database
from tests.support.ledger_rows import connect, scalar

NOW = datetime.now(UTC).replace(microsecond=0)
ROWS = 30


def record(offset: int, *, topic: str = "t", partition: int = 0, logged_at: datetime = NOW) -> AuditRecord:
    return AuditRecord(
        topic=topic,
        partition=partition,
        log_offset=offset,
        logged_at=logged_at,
        delivery_id=f'dlv_{offset} \u00e4\u2028"\\\x7f\x01',
        destination_id="acme",
        event_id="e",
        dispatch_seq=1,
        attempt=1,
        result="retry",
        outcome="server_error",
        status=500,
        ambiguous=True,
        worker_id="w",
        key_ids=["k1", 'k"2'],
        started_at=NOW + timedelta(microseconds=offset),
        duration_us=5,
        body_sha256=b"\x01" * 32,
    )


@pytest.fixture(scope="module")
def filled_template(postgres_dsn: str, migrated_template: str) -> Iterator[str]:
    """A database with two chains of ROWS rows each: offsets 0, 2, 4 …, as with transactions' markers between."""
    with fresh_database(postgres_dsn, template=migrated_template) as dsn, connect(dsn) as connection:
        ensure_audit_partitions(connection, days_back=1, days_ahead=1)
        for first in range(0, ROWS, 10):
            batch = [record(2 * n, partition=p) for n in range(first, first + 10) for p in (1, 0)]
            assert [done.appended for done in record_messages(connection, batch)] == [10, 10]
        yield dsn


@pytest.fixture
def store(filled_template: str) -> Iterator[psycopg.Connection]:
    """A superuser's session that may do what the triggers forbid; all is undone afterwards."""
    with psycopg.connect(filled_template) as connection:
        connection.execute("set session_replication_role = replica")
        yield connection
        connection.rollback()


def found(connection: psycopg.Connection) -> list[tuple[str, int, int, int]]:
    return [(f.defect, f.partition, f.first_seq, f.last_seq) for f in verify(connection).findings]


def test_untouched_is_intact(store: psycopg.Connection) -> None:
    verified = verify(store)
    assert verified.findings == []
    assert verified.rows == 2 * ROWS


COLUMNS = {
    "logged_at": "logged_at + interval '1 us'",
    "recorded_at": "recorded_at + interval '1 us'",
    "delivery_id": "delivery_id || ' '",
    "destination_id": "null",
    "event_id": "''",
    "dispatch_seq": "2",
    "reason": "'due'",
    "attempt": "2",
    "result": "'succeeded'",
    "outcome": "'success'",
    "status": "200",
    "ambiguous": "false",
    "worker_id": "'x'",
    "key_ids": "array['k1']",
    "started_at": "started_at - interval '1 us'",
    "duration_us": "6",
    "body_sha256": "'\\x02'",
    "defect": "'x'",
    "hash": "sha256(hash)",
    "log_offset": "1",
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_changed_value_is_found_at_its_place(store: psycopg.Connection, column: str) -> None:
    store.execute(
        f"update outrider_audit.record set {column} = {COLUMNS[column]} where partition = 1 and chain_seq = 7".encode()
    )
    # A changed hash is also not the one that the next link was made with.
    assert found(store) == [("changed", 1, 7, 7), *([("changed", 1, 8, 8)] if column == "hash" else [])]


def test_every_column_is_hashed() -> None:
    assert {*COLUMNS, "topic", "partition", "chain_seq"} == {*AUDIT_COLUMNS}


def remake(connection: psycopg.Connection, partition: int, from_seq: int, to_seq: int) -> None:
    """Make the hashes of a stretch anew, as one does who wants to hide a change."""
    for seq in range(from_seq, to_seq + 1):
        connection.execute(
            """
            update outrider_audit.record r
            set hash = outrider_audit.link(b.hash, outrider_audit.content(r))
            from outrider_audit.record b
            where r.partition = %(partition)s and r.chain_seq = %(seq)s
              and b.partition = %(partition)s and b.chain_seq = %(seq)s - 1
            """,
            {"partition": partition, "seq": seq},
        )


CHANGE = "update outrider_audit.record set result = 'succeeded' where partition = 0 and chain_seq = 7"


def test_a_changed_row_with_a_new_hash_is_found_by_the_next(store: psycopg.Connection) -> None:
    store.execute(CHANGE)
    remake(store, 0, 7, 7)
    assert found(store) == [("changed", 0, 8, 8)]


def test_hashes_made_anew_up_to_the_end_are_found_by_the_tip(store: psycopg.Connection) -> None:
    store.execute(CHANGE)
    remake(store, 0, 7, ROWS)
    assert found(store) == [("unlinked", 0, ROWS, ROWS)]


def test_a_chain_and_its_tip_made_anew_are_found_by_an_anchor(store: psycopg.Connection) -> None:
    row = store.execute("select hash from outrider_audit.tip where partition = 0").fetchone()
    assert row is not None
    store.execute(CHANGE)
    remake(store, 0, 7, ROWS)
    store.execute(
        "update outrider_audit.tip t set hash = r.hash from outrider_audit.record r "
        "where t.partition = 0 and r.partition = 0 and r.chain_seq = t.chain_seq"
    )
    assert found(store) == []  # nothing in the database says it
    kept = {("t", 0): {ROWS: bytes(row[0])}}
    assert [(f.defect, f.first_seq) for f in verify(store, kept_anchors=kept).findings] == [("anchor", ROWS)]
    store.execute("insert into outrider_audit.anchor values ('t', 0, %s, %s, now())", (ROWS, row[0]))
    assert found(store) == [("anchor", 0, ROWS, ROWS)]


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 5), (7, 7), (7, 20), (ROWS - 1, ROWS - 1)])
def test_removed_rows_are_found_with_their_places(store: psycopg.Connection, first: int, last: int) -> None:
    store.execute(
        "delete from outrider_audit.record where partition = 1 and chain_seq between %s and %s", (first, last)
    )
    assert found(store) == [("missing", 1, first, last)]


@pytest.mark.parametrize("rows", [1, 10, ROWS])
def test_newest_rows_cut_off_are_found_by_the_tip(store: psycopg.Connection, rows: int) -> None:
    store.execute("delete from outrider_audit.record where partition = 1 and chain_seq > %s", (ROWS - rows,))
    assert found(store) == [("cut", 1, ROWS - rows + 1, ROWS)]


def test_newest_rows_cut_off_together_with_the_tip_are_found_by_an_anchor(store: psycopg.Connection) -> None:
    store.execute(
        "insert into outrider_audit.anchor select topic, partition, chain_seq, hash, now() from outrider_audit.tip"
    )
    store.execute("delete from outrider_audit.record where partition = 1 and chain_seq > 20")
    store.execute(
        "update outrider_audit.tip t set chain_seq = 20, hash = r.hash from outrider_audit.record r "
        "where t.partition = 1 and r.partition = 1 and r.chain_seq = 20"
    )
    assert found(store) == [("cut", 1, 21, ROWS)]


def test_a_chain_that_was_emptied_with_its_tip_is_found_by_a_kept_anchor(store: psycopg.Connection) -> None:
    store.execute("delete from outrider_audit.record where partition = 1")
    store.execute("delete from outrider_audit.tip where partition = 1")
    assert found(store) == []
    kept = {("t", 1): {ROWS: b"x"}}
    assert [(f.defect, f.last_seq) for f in verify(store, kept_anchors=kept).findings] == [("cut", ROWS)]


def test_a_row_that_was_put_in_is_found(store: psycopg.Connection) -> None:
    store.execute(
        "insert into outrider_audit.record (topic, partition, log_offset, logged_at, chain_seq, recorded_at, hash) "
        "select topic, partition, 13, logged_at, chain_seq, recorded_at, hash from outrider_audit.record "
        "where partition = 0 and chain_seq = 7"
    )
    assert [(d, s) for d, _, s, _ in found(store) if d == "foreign"] == [("foreign", 7)]


def test_recording_again_changes_nothing(store: psycopg.Connection) -> None:
    before = scalar(
        store, "select md5(string_agg(r::text, '' order by partition, chain_seq)) from outrider_audit.record r"
    )
    (again,) = record_messages(store, [record(2 * n) for n in range(ROWS)])
    assert (again.appended, again.repeated, again.chain_seq) == (0, ROWS, ROWS)
    after = scalar(
        store, "select md5(string_agg(r::text, '' order by partition, chain_seq)) from outrider_audit.record r"
    )
    assert after == before


def test_what_was_passed_over_is_recorded_later_behind_the_rest(store: psycopg.Connection) -> None:
    (late,) = record_messages(store, [record(offset) for offset in (3, 4, 5)])
    assert (late.appended, late.repeated, late.chain_seq) == (2, 1, ROWS + 2)
    assert found(store) == []


def test_a_topic_that_began_anew_is_recorded_beside_the_old_one(store: psycopg.Connection) -> None:
    (new,) = record_messages(store, [record(offset, logged_at=NOW + timedelta(seconds=1)) for offset in (0, 2)])
    assert (new.appended, new.chain_seq) == (2, ROWS + 2)
    assert found(store) == []


def test_anchors_are_noted_every_thousand_links(store: psycopg.Connection) -> None:
    made = []
    for first in range(0, 2500, 500):
        made += record_messages(store, [record(n, topic="many") for n in range(first, first + 500)])
    assert [done.chain_seq for done in made if done.is_anchor] == [1000, 2000]
    assert scalar(store, "select count(*) from outrider_audit.anchor where topic = 'many'") == 2
    assert found(store) == []


def test_an_anchor_is_noted_when_the_last_is_an_hour_old(store: psycopg.Connection) -> None:
    store.execute("update outrider_audit.tip set anchored_at = now() - interval '61 min'")
    assert [done.is_anchor for done in record_messages(store, [record(100)])] == [True]
    assert [done.is_anchor for done in record_messages(store, [record(101)])] == [False]


OLD = NOW - timedelta(days=45)


@pytest.fixture
def old_days(store: psycopg.Connection) -> psycopg.Connection:
    """Chain ``old``: of 60 rows the first 40 over two days long ago, mixed where the days meet, and 20 of today."""
    ensure_audit_partitions(store, days_back=50, days_ahead=1)
    days = [OLD] * 19 + [OLD + timedelta(days=1), OLD] + [OLD + timedelta(days=1)] * 19 + [NOW] * 20
    record_messages(store, [record(n, topic="old", logged_at=day) for n, day in enumerate(days)])
    return store


def expire(connection: psycopg.Connection, keep_days: int) -> list[str]:
    """All days that are due, one by one as the reconciler does."""
    names: list[str] = []
    while found := connection.execute("select outrider_audit.expire(%s)", (keep_days,)).fetchall():
        names += [row[0] for row in found]
    return names


def test_retention_leaves_tombstones_and_an_intact_chain(old_days: psycopg.Connection) -> None:
    assert len(expire(old_days, 40)) >= 2
    (chain,) = verify(old_days, topic="old").chains
    assert (chain.rows, chain.removed_rows, chain.findings) == (20, 40, 0)
    record_messages(old_days, [record(n, topic="old") for n in range(100, 110)])
    assert found(old_days) == []
    assert expire(old_days, 40) == []


def test_retention_of_a_whole_chain_leaves_it_intact(store: psycopg.Connection) -> None:
    ensure_audit_partitions(store, days_back=50, days_ahead=1)
    record_messages(store, [record(n, topic="old", logged_at=OLD) for n in range(5)])
    expire(store, 40)
    assert [(c.rows, c.removed_rows, c.tip_seq, c.findings) for c in verify(store, topic="old").chains] == [
        (0, 5, 6, 0)
    ]


def test_retention_in_two_steps_leaves_it_intact(old_days: psycopg.Connection) -> None:
    for keep_days, removed_rows in ((44, 20), (43, 40)):
        assert expire(old_days, keep_days)
        assert [chain.removed_rows for chain in verify(old_days, topic="old").chains] == [removed_rows]
    assert found(old_days) == []


def test_rows_removed_beside_retention_are_found(old_days: psycopg.Connection) -> None:
    expire(old_days, 40)
    old_days.execute("delete from outrider_audit.record where topic = 'old' and chain_seq between 41 and 43")
    assert found(old_days) == [("missing", 0, 41, 43)]


@pytest.mark.parametrize("change", ["to_seq = to_seq + 1", "removed_by = 'x'", "after_hash = sha256('')"])
def test_a_changed_tombstone_is_found(old_days: psycopg.Connection, change: str) -> None:
    expire(old_days, 40)
    old_days.execute(f"update outrider_audit.tombstone set {change} where from_seq = 1".encode())
    assert found(old_days) != []


def test_a_forged_tombstone_over_new_rows_is_found(store: psycopg.Connection) -> None:
    store.execute(
        """
        insert into outrider_audit.tombstone
        select t.topic, t.partition, t.chain_seq + 1, 5, 9, 8, 16, now(), now(), b.hash, a.hash, now(), 'x', 31, ''
        from outrider_audit.tip t
        join outrider_audit.record b on (b.partition, b.chain_seq) = (0, 4)
        join outrider_audit.record a on (a.partition, a.chain_seq) = (0, 9)
        where t.partition = 0
        """
    )
    store.execute(
        "update outrider_audit.tombstone s set hash = outrider_audit.link(t.hash, outrider_audit.content(s)) "
        "from outrider_audit.tip t where t.partition = 0"
    )
    store.execute(
        "update outrider_audit.tip t set chain_seq = s.chain_seq, hash = s.hash from outrider_audit.tombstone s "
        "where t.partition = 0"
    )
    store.execute("delete from outrider_audit.record where partition = 0 and chain_seq between 5 and 9")
    assert found(store) == [("forged_tombstone", 0, ROWS + 1, ROWS + 1)]


def test_less_than_a_month_is_never_removed(store: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="31 days"):
        expire(store, 30)


@pytest.mark.parametrize(
    "statement", ["update outrider_audit.record set result = 'x'", "delete from outrider_audit.record"]
)
def test_even_the_owner_is_refused_changes(filled_template: str, statement: str) -> None:
    with connect(filled_template) as owner, pytest.raises(psycopg.errors.InsufficientPrivilege, match="only grows"):
        owner.execute(statement.encode())


@pytest.mark.parametrize("name", ["links_of", "records_of_delivery", "tip_of", "anchors_of", "tombstones_of"])
def test_frequent_questions_read_an_index(store: psycopg.Connection, name: str) -> None:
    store.execute("set local enable_seqscan = off")
    parameters = {"topic": "t", "partition": 0, "delivery_id": "dlv_1", "limit": 10}
    plan = store.execute(f"explain {query('audit', name)}".encode(), parameters).fetchall()
    assert "Seq Scan" not in "".join(row[0] for row in plan)


def test_of_many_rows_one_is_read_to_find_each_chain(store: psycopg.Connection) -> None:
    store.execute("set local enable_seqscan = off")
    (plan,) = store.execute(f"explain (analyze, format json) {query('audit', 'chains')}".encode()).fetchone() or ({},)
    assert max(rows_of_records(plan[0]["Plan"])) <= 3


def rows_of_records(node: dict[str, Any]) -> Iterator[float]:
    if str(node.get("Relation Name", "")).startswith("record_"):
        yield node["Actual Rows"] * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from rows_of_records(child)
