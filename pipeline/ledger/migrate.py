"""Numbered plain-SQL migrations, up and down, with checksums.

A migration is a pair of files ``NNNN_name.up.sql`` and ``NNNN_name.down.sql`` beside this module. Each runs in one
transaction together with its row in ``public.outrider_migration``. One advisory lock makes concurrent callers wait for each
other. A file that changed after it was applied is refused: the recorded checksum (SHA-256 of the up file) names it.

The libraries in this field either own the schema's model (Alembic) or keep no checksums and no lock of their own
(yoyo); what is needed is this one page.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

import psycopg
from psycopg import sql

LOCK_KEY = 0x6F75_7472_6964_6572  # "outrider"
LOCK_WAIT_SECONDS = 60
_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.(up|down)\.sql")


class MigrationError(Exception):
    """The schema and the migrations do not fit; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.up.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    migration: str
    applied_at: str | None
    """ISO 8601, or None while it is pending."""


def available() -> list[Migration]:
    """The migrations of this version, in order. Raises MigrationError where a pair or a number is missing."""
    halves: dict[tuple[int, str], dict[str, str]] = {}
    for entry in (resources.files(__package__) / "migrations").iterdir():
        match = _FILE_NAME.fullmatch(entry.name)
        if match:
            key = int(match[1]), match[2]
            halves.setdefault(key, {})[match[3]] = entry.read_text(encoding="utf-8")
    migrations = []
    for place, (key, files) in enumerate(sorted(halves.items()), start=1):
        if key[0] != place or len(files) != 2:
            raise MigrationError(
                f"migration {key[0]:04d}_{key[1]} is out of sequence, or one of its two files is missing"
            )
        migrations.append(Migration(key[0], key[1], files["up"], files["down"]))
    return migrations


def migrate_up(conninfo: str) -> list[str]:
    """Apply what is missing; returns the names applied."""
    with _locked(conninfo) as connection:
        pending = _pending(connection)
        for migration in pending:
            with connection.transaction():
                _run(connection, migration, migration.up)
                connection.execute(
                    "insert into public.outrider_migration (number, name, checksum) values (%s, %s, %s)",
                    (migration.number, migration.name, migration.checksum),
                )
        return [str(migration) for migration in pending]


def migrate_down(conninfo: str, to: int) -> list[str]:
    """Undo, newest first, all migrations with a number above ``to``; returns their names. Deletes their data."""
    with _locked(conninfo) as connection:
        applied = len(available()) - len(_pending(connection))
        undone = []
        for migration in reversed(available()[:applied]):
            if migration.number <= to:
                break
            with connection.transaction():
                _run(connection, migration, migration.down)
                connection.execute("delete from public.outrider_migration where number = %s", (migration.number,))
            undone.append(str(migration))
        return undone


def migrate_status(conninfo: str) -> list[MigrationStatus]:
    """Every migration of this version, and when it was applied. Changes nothing."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        exists = connection.execute("select to_regclass('public.outrider_migration') is not null").fetchone()
        times: dict[int, str] = {}
        if exists == (True,):
            _pending(connection)
            times = {
                number: applied_at.isoformat()
                for number, applied_at in connection.execute("select number, applied_at from public.outrider_migration")
            }
    return [MigrationStatus(str(migration), times.get(migration.number)) for migration in available()]


def _locked(conninfo: str) -> psycopg.Connection:
    connection = psycopg.connect(conninfo, autocommit=True)
    try:
        connection.execute(sql.SQL("set lock_timeout = {}").format(sql.Literal(f"{LOCK_WAIT_SECONDS}s")))
        connection.execute("select pg_advisory_lock(%s)", (LOCK_KEY,))
        connection.execute("reset lock_timeout")
        connection.execute(
            "create table if not exists public.outrider_migration (number integer primary key, name text not null, "
            "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
        )
    except psycopg.errors.LockNotAvailable:
        connection.close()
        raise MigrationError(
            f"another migration has run for {LOCK_WAIT_SECONDS} s; wait for it, or end its session"
        ) from None
    except BaseException:
        connection.close()
        raise
    return connection  # leaving the with block closes it, and that gives the advisory lock back


def _pending(connection: psycopg.Connection) -> list[Migration]:
    """Migrations not applied yet. Raises MigrationError where the applied ones are not a prefix of ours."""
    migrations = available()
    rows = connection.execute("select number, name, checksum from public.outrider_migration order by number").fetchall()
    for place, (number, name, checksum) in enumerate(rows):
        if place >= len(migrations):
            raise MigrationError(
                f"the database has migration {number:04d}_{name}, which this version does not know: run a newer outrider"
            )
        migration = migrations[place]
        if (migration.number, migration.name) != (number, name):
            raise MigrationError(f"the database has {number:04d}_{name} where this version has {migration}")
        if migration.checksum != checksum:
            raise MigrationError(
                f"{migration} was changed after it was applied: restore the file, and put the change into a new migration"
            )
    return migrations[len(rows) :]


def _run(connection: psycopg.Connection, migration: Migration, text: str) -> None:
    try:
        connection.execute(text.encode())
    except psycopg.Error as error:
        raise MigrationError(f"{migration}: {error.diag.message_primary or error}") from error
