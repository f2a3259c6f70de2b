"""Sources in ``outrider run reconciler``: whatever wakes a pass, it finds what is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pipeline.ledger.api_keys import Scope
from tests.fixtures.components import StartComponent
from tests.support.api_world import api, caller, make_key
from tests.support.ledger_rows import connect, scalar, wait_until
from tests.support.program import Outrider
from tests.support.source_world import SOURCE_ID, add_assets, make_assets, set_modes, write_source

OPEN = "select count(*) from public.asset where announced_at is null"


@pytest.fixture
def connection(database: str, role_dsns: dict[str, str]) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        login = psycopg.conninfo.conninfo_to_dict(role_dsns["reconciler"])["user"]
        make_assets(connection, reconciler=str(login))
        yield connection


def wait_for_all(connection: psycopg.Connection, count: int) -> None:
    wait_until(lambda: scalar(connection, OPEN) == 0, "nothing is due")
    assert scalar(connection, "select count(*) from outrider.event") == count


async def test_every_wake_up_makes_a_pass_begin(
    component: StartComponent,
    connection: psycopg.Connection,
    database: str,
    role_dsns: dict[str, str],
    tmp_path: Path,
    outrider: Outrider,
) -> None:
    write_source(tmp_path)
    component("reconciler", sources_directory=tmp_path)
    wait_until(lambda: scalar(connection, "select count(*) from outrider.source") == 1, "the source is read")
    entry = outrider("source", "set", SOURCE_ID, "--mode", "live", "--reason", "test", "--json").json
    assert entry["modes"] == ["live"] * 4

    add_assets(connection, 1, 10)
    async with api(role_dsns["api"]) as url, caller(url, make_key(database, Scope.READ, Scope.WAKE)) as client:
        reply = await client.ask("POST", f"/v1/wakeups/{SOURCE_ID}")
        assert (reply.status, reply.body["source"]) == (202, SOURCE_ID)
        assert (await client.ask("POST", "/v1/wakeups/nothing")).problem == "not-found"
        run_id = reply.body["run_id"]
    wait_for_all(connection, 10)
    finished = "select woken_by || counts ->> 'admitted' from outrider.run where run_id = %s and finished_at is not null"
    wait_until(lambda: connection.execute(finished, (run_id,)).fetchone() == ("http10",), "the run has ended")
