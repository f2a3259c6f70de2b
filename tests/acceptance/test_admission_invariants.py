"""Invariants 1 to 3 through HTTP: two API processes under load, one of them killed again and again."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import Iterator

import aiohttp
import psycopg
import pytest

from pipeline.core.ids import delivery_identity
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.api_world import EVENT, make_key
from tests.support.ledger_rows import add_destination, connect, scalar, wait_until

EVENTS = 600
SENDERS = 24
KILLS = 3
DEADLINE_SECONDS = 120.0
NAMES = ("a", "b", "c")


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        for name in NAMES:
            add_destination(connection, name)
        connection.execute("insert into outrider.subscription select unnest(array['a', 'b', 'c']), 'media.*'")
        yield connection


class Sender:
    """Sends each event to either process until one says that it is committed, and then once more to the other."""

    def __init__(self, urls: list[str], key: str) -> None:
        self._urls = urls
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"})
        self.receipts: dict[int, list[dict[str, int]]] = {}
        self.tries: Counter[int | str] = Counter()

    async def close(self) -> None:
        await self._session.close()

    async def send(self, number: int) -> None:
        receipts = self.receipts[number] = []
        place = number
        while len(receipts) < 2:
            place += 1
            receipt = await self._try(self._urls[place % len(self._urls)], number)
            if receipt is None:
                await asyncio.sleep(0.02)
            else:
                receipts.append(receipt)

    async def _try(self, url: str, number: int) -> dict[str, int] | None:
        headers = {**EVENT, "ce-id": f"asset-{number}"}
        try:
            async with self._session.post(f"{url}/v1/events", data=f'{{"n":{number}}}', headers=headers) as response:
                self.tries[response.status] += 1
                assert response.status in (202, 401, 503), await response.text()
                return dict(await response.json()) if response.status == 202 else None
        except aiohttp.ClientError:
            self.tries["broken"] += 1
            return None


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_two_processes_and_kills_lose_nothing_and_make_nothing_twice(
    component: StartComponent, database: str, connection: psycopg.Connection
) -> None:
    ports = free_ports(2)
    _, victim = (component("api", api_port=port) for port in ports)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for url in urls:
        wait_until(lambda url=url: is_ready(url), "it answers")
    key = make_key(database)

    async def run() -> Sender:
        sender = Sender(urls, key)
        places = asyncio.Semaphore(SENDERS)

        async def one(number: int) -> None:
            async with places:
                await sender.send(number)

        async def kill_at(settled: int) -> None:
            while sum(len(receipts) == 2 for receipts in sender.receipts.values()) < settled:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)

        async def kills() -> None:
            for number in range(1, KILLS + 1):
                await kill_at(number * EVENTS // (KILLS + 2))

        try:
            async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(kills())
                for number in range(EVENTS):
                    tasks.create_task(one(number))
        finally:
            await sender.close()
        return sender

    sender = asyncio.run(run())

    assert sender.tries["broken"] > 0, "no request met a process that was dead"
    # 1: one identity for each event and destination, whichever process and however often; nothing made twice.
    for number, receipts in sender.receipts.items():
        assert len({receipt["event_id"] for receipt in receipts}) == 1
        assert sum(receipt["accepted"] for receipt in receipts) <= len(NAMES), number
        assert receipts[-1] | {"deliveries": ()} == {
            "event_id": receipts[0]["event_id"], "accepted": 0, "existing": len(NAMES), "deliveries": (),
        }  # fmt: skip
    rows = connection.execute("select delivery_id, event_id, destination_id from outrider.delivery").fetchall()
    assert len(rows) == EVENTS * len(NAMES)
    assert all(delivery_id == delivery_identity(event_id, name) for delivery_id, event_id, name in rows)
    # 2: each delivery has its one dispatch, and none is there without its delivery.
    assert (
        scalar(
            connection,
            "select count(*) from outrider.delivery d full join outrider.dispatch_outbox o using (delivery_id, dispatch_seq) "
            "where d.event_id is null or o.event_id is null",
        )
        == 0
    )
    assert scalar(connection, "select count(*) from outrider.dispatch_outbox") == len(rows)
    # 3: each waits with a time at which the reconciler looks.
    assert scalar(connection, "select count(*) from outrider.delivery where lost_after is null") == 0
    # What was answered is what is there.
    assert scalar(connection, "select count(*) from outrider.event") == EVENTS
