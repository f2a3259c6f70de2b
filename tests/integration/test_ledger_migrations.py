"""Migrations go up, down and up again; what does not fit is refused, and concurrent callers take turns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.ledger import migrate
from pipeline.ledger.migrate import MigrationError, available, migrate_down, migrate_status, migrate_up
from tests.support.ledger_rows import connect, scalar, wait_until

NAMES = [str(migration) for migration in available()]
# Everything of ours in the catalogue, in words that two databases can be compared by.
CATALOGUE = """
select 'table ' || c.oid::regclass || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace::regnamespace::text in ('outrider', 'outrider_audit') and a.attnum > 0 and not a.attisdropped
union all
select 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid)
from pg_constraint where connamespace::regnamespace::text in ('outrider', 'outrider_audit')
union all
select 'function ' || oid::regprocedure || ' ' || md5(prosrc)
from pg_proc where pronamespace::regnamespace::text in ('outrider', 'outrider_audit')
union all
select 'grant ' || c.oid::regclass || ' ' || coalesce(c.relacl::text, '')
from pg_class c where c.relnamespace::regnamespace::text in ('outrider', 'outrider_audit')
union all
select 'publication ' || pubname || ' ' || pubinsert || pubupdate || pubdelete || pubtruncate || pubviaroot
from pg_publication
order by 1
"""


def catalogue(dsn: str) -> list[tuple[str]]:
    with connect(dsn) as connection:
        return connection.execute(CATALOGUE).fetchall()


def applied(dsn: str) -> list[str]:
    return [status.migration for status in migrate_status(dsn) if status.applied_at is not None]


@pytest.fixture
def unlocked(empty_database: str) -> Iterator[str]:
    """A database in which no caller of ours holds the lock after the test."""
    yield empty_database
    with connect(empty_database) as connection:
        held = scalar(
            connection,
            "select count(*) from pg_locks where locktype = 'advisory' and database = "
            "(select oid from pg_database where datname = current_database())",
        )
    assert held == 0


def test_up_down_up_gives_the_same_schema(unlocked: str) -> None:
    assert migrate_status(unlocked)[0].applied_at is None
    assert migrate_up(unlocked) == NAMES
    first = catalogue(unlocked)

    assert migrate_down(unlocked, 0) == NAMES[::-1]
    assert catalogue(unlocked) == []

    assert migrate_up(unlocked) == NAMES
    assert catalogue(unlocked) == first


@pytest.mark.parametrize("number", range(len(NAMES) + 1))
def test_down_stops_where_it_is_told(empty_database: str, number: int) -> None:
    migrate_up(empty_database)
    assert migrate_down(empty_database, number) == NAMES[number:][::-1]
    assert applied(empty_database) == NAMES[:number]
    assert migrate_up(empty_database) == NAMES[number:]


def test_up_again_does_nothing(database: str) -> None:
    before = catalogue(database)
    assert migrate_up(database) == []
    assert catalogue(database) == before


def test_a_file_that_changed_after_it_was_applied_is_refused(unlocked: str) -> None:
    migrate_up(unlocked)
    with connect(unlocked) as connection:
        connection.execute("update public.outrider_migration set checksum = 'other' where number = 2")
    before = catalogue(unlocked)
    for call in (migrate_up, migrate_status, lambda dsn: migrate_down(dsn, 0)):
        with pytest.raises(MigrationError, match=NAMES[1]):
            call(unlocked)
    assert catalogue(unlocked) == before


def test_a_database_of_a_newer_version_is_refused(unlocked: str) -> None:
    migrate_up(unlocked)
    with connect(unlocked) as connection:
        connection.execute(
            "insert into public.outrider_migration (number, name, checksum) values (%s, 'from_the_future', 'x')",
            (len(NAMES) + 1,),
        )
    with pytest.raises(MigrationError, match=r"from_the_future.*newer outrider"):
        migrate_up(unlocked)
    with pytest.raises(MigrationError, match="from_the_future"):
        migrate_down(unlocked, 0)


def test_two_callers_at_once_apply_each_migration_once(unlocked: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: migrate_up(unlocked), range(4)))
    assert sorted(results, key=len) == [[], [], [], NAMES]
    assert applied(unlocked) == NAMES


def test_a_migration_that_fails_leaves_those_before_it_and_no_half(
    unlocked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = available()
    broken = [
        migrate.Migration(m.number, m.name, m.up + "; create table outrider.half (); select 1 / 0", m.down)
        if m.number == 3
        else m
        for m in whole
    ]
    monkeypatch.setattr(migrate, "available", lambda: broken)
    with pytest.raises(MigrationError, match=f"{NAMES[2]}: division by zero"):
        migrate_up(unlocked)
    assert applied(unlocked) == NAMES[:2]
    with connect(unlocked) as connection:
        assert scalar(connection, "select to_regclass('outrider.half') is null")

    monkeypatch.setattr(migrate, "available", lambda: whole)
    assert migrate_up(unlocked) == NAMES[2:]


def test_a_caller_that_waits_too_long_says_what_to_do(unlocked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "LOCK_WAIT_SECONDS", 1)
    with connect(unlocked) as holder:
        holder.execute("select pg_advisory_lock(%s)", (migrate.LOCK_KEY,))
        with pytest.raises(MigrationError, match="another migration has run"):
            migrate_up(unlocked)
    with connect(unlocked) as connection:
        wait_until(lambda: scalar(connection, "select count(*) from pg_locks where locktype = 'advisory'") == 0, "free")
    assert migrate_up(unlocked) == NAMES


def test_numbers_follow_each_other_without_a_gap() -> None:
    assert [migration.number for migration in available()] == list(range(1, len(NAMES) + 1))
