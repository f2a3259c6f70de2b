"""The example that the README shows: run as a reader runs it, and left in the middle of its transaction."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from examples.quickstart import process

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def application_dsn(database: str, role_dsns: dict[str, str]) -> str:
    """An application's login, with the table of the example and one subscriber."""
    with psycopg.connect(database) as admin:
        admin.execute("create table asset (asset_id bigint primary key, state text not null)")
        admin.execute("grant select, insert, update on asset to outrider_application")
        admin.execute("insert into outrider.destination (destination_id, url) values ('acme', 'https://acme.example/')")
        admin.execute("insert into outrider.subscription (destination_id, event_type) values ('acme', 'media.*')")
    return role_dsns["application"]


def run_quickstart(dsn: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py"), "42"],
        env={**os.environ, "DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_it_admits_once_however_often_it_runs(application_dsn: str, database: str) -> None:
    (first,) = run_quickstart(application_dsn)
    (second,) = run_quickstart(application_dsn)
    identity = first.split()[0]
    assert first == f"{identity} acme new"
    assert second == f"{identity} acme admitted before"
    with psycopg.connect(database) as admin:
        assert admin.execute("select asset_id, state from asset").fetchall() == [(42, "processed")]
        assert admin.execute("select delivery_id, dispatch_seq from outrider.dispatch_outbox").fetchall() == [
            (identity, 1)
        ]


def test_a_caller_that_rolls_back_leaves_neither_row_nor_event(application_dsn: str, database: str) -> None:
    with psycopg.connect(application_dsn) as connection, connection.transaction(force_rollback=True):
        (delivery,) = process(connection, 43)
        assert delivery.created
    with psycopg.connect(database) as admin:
        for table in ("asset", "outrider.event", "outrider.delivery", "outrider.dispatch_outbox"):
            assert admin.execute(f"select count(*) from {table}").fetchone() == (0,)
