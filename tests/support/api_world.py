"""The API on a test's database, under its own role, with keys for its callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp
import psycopg

from pipeline.admission.api import ApiLimits, serve_api
from pipeline.admission.destination_endpoints import Receivers
from pipeline.admission.key_tokens import new_token
from pipeline.admission.probe import DatabaseProbe
from pipeline.cli.run_api import receivers_of
from pipeline.ledger.api_keys import KeyLimits, Scope, create_key
from pipeline.ledger.pool import open_pool
from pipeline.settings import load_settings

DEADLINE_SECONDS = 30.0
WIDE = KeyLimits(requests_per_second=1e6, bytes_per_second=1e12, in_flight_max=100_000)
EVERY_SCOPE = tuple(Scope)
EVENT = {
    "ce-specversion": "1.0",
    "ce-id": "asset-42-processed-1",
    "ce-source": "/media",
    "ce-type": "media.processed",
    "content-type": "application/json",
}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Any
    """Decoded JSON."""
    headers: Mapping[str, str] = field(repr=False)

    @property
    def problem(self) -> str:
        """The name that ends the problem's type."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.body["status"] == self.status
        assert self.body["title"]
        assert self.body["detail"]
        return str(self.body["type"]).removeprefix("urn:outrider:problem:")


class Client:
    """One caller; every answer must be JSON."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def ask(self, method: str, path: str, **options: Any) -> Reply:
        async with self.session.request(method, self.url + path, **options) as response:
            return Reply(response.status, json.loads(await response.read()), response.headers)

    async def admit(self, body: bytes = b'{"asset":42}', query: str = "", **attributes: str) -> Reply:
        """Binary mode; ``attributes`` over those of EVENT, ``id_`` for ``ce-id``."""
        headers = EVENT | {f"ce-{name.rstrip('_')}": value for name, value in attributes.items()}
        return await self.ask("POST", f"/v1/events{query}", data=body, headers=headers)

    async def ready(self) -> None:
        """Until the API answers for this caller's key."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await self.ask("GET", "/v1/nowhere")).status != 404 or await self._unready():  # noqa: ASYNC110 - it is asked from outside
                await asyncio.sleep(0.02)

    async def _unready(self) -> bool:
        # A parameter that does not exist is complained about behind the key, and before the database is looked at.
        if (await self.ask("POST", "/v1/events?nonsense=1")).status == 401:
            return True
        return (await self.ask("GET", "/v1/deliveries?limit=1")).status == 503


def make_key(
    database: str,
    *scopes: Scope,
    limits: KeyLimits = WIDE,
    expires_at: datetime | None = None,
) -> str:
    """A key's text."""
    token = new_token()
    with psycopg.connect(database, autocommit=True) as connection:
        create_key(
            connection,
            key_id=token.key_id,
            name="test",
            secret_sha256=token.secret_sha256,
            scopes=scopes or EVERY_SCOPE,
            limits=limits,
            created_by="tests",
            expires_at=expires_at,
        )
    return str(token)


def receivers_on_loopback(dsn: str, **settings: object) -> Receivers:
    """Destinations made over the API may lie on this machine, without TLS."""
    return receivers_of(
        load_settings(
            **{
                "postgres_dsn": dsn,
                "api_receiver_networks": "127.0.0.0/8 ::1/128",
                "api_receiver_http": True,
                **settings,
            }
        )
    )


@asynccontextmanager
async def api(
    dsn: str, *, limits: ApiLimits | None = None, connections: int = 4, **settings: object
) -> AsyncIterator[str]:
    """The API's URL while the block runs, in this process."""
    async with (
        open_pool(dsn, connections, "test api") as pool,
        serve_api(
            "127.0.0.1",
            0,
            pool,
            DatabaseProbe(pool),
            conninfo=dsn,
            receivers=receivers_on_loopback(dsn, **settings),
            limits=limits,
        ) as port,
    ):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def caller(url: str, key: str | None, *, wait: bool = True) -> AsyncIterator[Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(session, url)
        if wait:
            await client.ready()
        yield client


def structured(event_id: str, **members: Any) -> dict[str, Any]:
    """A CloudEvent in its JSON format."""
    return {"specversion": "1.0", "id": event_id, "source": "/media", "type": "media.processed", **members}


def items(*events: dict[str, Any], destinations: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Items of a batch, all for the same destinations."""
    return [{"event": event, **({"destinations": list(destinations)} if destinations else {})} for event in events]
