"""``outrider run api``: health, metrics, and where deliveries stand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator

import aiohttp
import psycopg
import pytest

from pipeline.admission.api import serve_api
from pipeline.admission.key_tokens import new_token
from pipeline.admission.probe import DatabaseProbe
from pipeline.admission.status import StatusReport
from pipeline.ledger.api_keys import Scope
from pipeline.ledger.pool import Pool, open_pool
from pipeline.ledger.reports import counts_by_state
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.api_world import api, make_key, receivers_on_loopback
from tests.support.ledger_rows import STATES, add_delivery, add_destination, connect, wait_until

NOWHERE = "host=127.0.0.1 port=1 dbname=nowhere"
PAST = "2020-01-01T00:00:00Z"
DEADLINE_SECONDS = 30.0


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        add_destination(connection)
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, 2, "test") as pool:
        yield pool


@pytest.fixture
async def client(database: str, role_dsns: dict[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    key = make_key(database, Scope.READ)
    async with (
        api(role_dsns["api"]) as url,
        aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        await wait_until_ready(client)
        yield client


async def answer(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as response:
        return response.status, await response.text()


async def wait_until_ready(client: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await answer(client, "/readyz"))[0] != 200 or (await answer(client, "/v1/events"))[0] != 200:  # noqa: ASYNC110 - it is asked from outside
            await asyncio.sleep(0.02)


async def test_status_counts_each_state_and_tells_the_oldest_due(
    client: aiohttp.ClientSession, connection: psycopg.Connection
) -> None:
    for number, state in enumerate(STATES, start=1):
        for n in range(number):
            add_delivery(connection, f"{state}-{n}", state)
    connection.execute(
        "update outrider.delivery set next_attempt_at = now() - interval '100 s' where state = 'pending'"
    )

    status, text = await answer(client, "/v1/status")

    assert status == 200
    report = json.loads(text)
    assert report["counts"] == {"pending": 1, "enqueued": 2, "leased": 3, "succeeded": 4, "dead": 5}
    assert report["succeeded_is_estimate"] is False
    assert report["oldest_due_seconds"] >= 100


async def test_status_of_an_empty_ledger_is_all_zeros(client: aiohttp.ClientSession) -> None:
    report = json.loads((await answer(client, "/v1/status"))[1])
    assert report["counts"] == dict.fromkeys(STATES, 0)
    assert report["oldest_due_seconds"] == 0


async def test_askers_at_once_share_one_count(pool: Pool, connection: psycopg.Connection) -> None:
    report = StatusReport(pool)
    first = await report.current()
    add_delivery(connection, "e", "dead")
    answers = await asyncio.gather(*(report.current() for _ in range(50)))
    assert all(again is first for again in answers)


async def test_succeeded_is_estimated_where_counting_would_read_too_much(
    pool: Pool, connection: psycopg.Connection
) -> None:
    for state in STATES:
        add_delivery(connection, state, state)
    connection.execute("update pg_class set reltuples = 5000000 where oid = 'outrider.delivery'::regclass")
    counts = await counts_by_state(pool)
    assert counts.is_estimate
    assert counts.by_state.succeeded == 5_000_000 - 4
    assert counts.by_state.dead == 1


async def test_readiness_follows_the_database(client: aiohttp.ClientSession) -> None:
    await wait_until_ready(client)
    assert (await answer(client, "/livez"))[0] == 200


async def test_without_a_database_it_lives_is_not_ready_and_says_so() -> None:
    async with open_pool(NOWHERE, 1, "test") as pool:
        pool.timeout = 0.2
        async with (
            serve_api(
                "127.0.0.1",
                0,
                pool,
                DatabaseProbe(pool),
                conninfo=NOWHERE,
                receivers=receivers_on_loopback(NOWHERE),
            ) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        ):
            assert (await answer(client, "/livez"))[0] == 200
            assert (await answer(client, "/readyz"))[0] == 503
            headers = {"Authorization": f"Bearer {new_token()}"}
            async with client.get("/v1/status", headers=headers) as response:
                assert response.status == 503
                assert int(response.headers["retry-after"]) >= 1
                # What is wrong inside is for the log, not for whoever asks.
                assert "nowhere" not in await response.text()


async def test_metrics_are_there(client: aiohttp.ClientSession) -> None:
    status, text = await answer(client, "/metrics")
    assert status == 200
    assert "# HELP" in text


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/status"), ("GET", "/v1/nothing"), ("DELETE", "/v1/events")])
async def test_there_is_nothing_else(client: aiohttp.ClientSession, method: str, path: str) -> None:
    async with client.request(method, path) as response:
        assert response.status in (404, 405)


def test_the_component_serves_with_its_own_rights_and_ends_cleanly(component: StartComponent, database: str) -> None:
    process = component("api")
    urls: list[str] = []

    def listens() -> bool:
        urls.extend(re.findall(r"url=(http://\S+)", process.log_tail(20)))
        return bool(urls)

    wait_until(listens, "it listens")

    async def ask() -> None:
        headers = {"Authorization": f"Bearer {make_key(database)}"}
        async with aiohttp.ClientSession(urls[0], headers=headers) as client:
            await wait_until_ready(client)
            assert (await answer(client, "/v1/status"))[0] == 200

    asyncio.run(ask())
    assert process.terminate(DEADLINE_SECONDS) == 0


def test_a_port_that_is_taken_is_one_line(component: StartComponent) -> None:
    (port,) = free_ports(1)
    first = component("api", api_port=port)
    wait_until(lambda: "listening" in first.log_tail(20), "the first one listens")
    second = component("api", api_port=port)
    wait_until(lambda: not second.is_running, "the second one ends")
    assert second.exit_status == 1
    assert "OUTRIDER_API_PORT: cannot listen" in second.log_tail(5)
    assert "Traceback" not in second.log_tail(50)
