"""Components run as processes under their own logins, in tests and under `outrider up` alike."""

from __future__ import annotations

import time

import psycopg

from tests.fixtures.components import StartComponent

DEADLINE_SECONDS = 30.0


def sessions_of(database: str, login_suffix: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE %s",
            [f"%{login_suffix}"],
        ).fetchone()
    return 0 if row is None else int(row[0])


def test_component_works_on_its_tests_database_under_its_own_login(component: StartComponent, database: str) -> None:
    reconciler = component("reconciler")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while sessions_of(database, "reconciler") == 0:
        assert reconciler.is_running, reconciler.death_note()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert reconciler.terminate(DEADLINE_SECONDS) == 0
