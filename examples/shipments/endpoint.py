"""``POST /shipment-updates/enqueue``: the application's own door. It admits, and contacts nobody.

    SHIPMENTS_DSN=postgresql://shipments_app:…@127.0.0.1/outrider SHIPMENTS_TOKEN=… python -m examples.shipments.endpoint

The body names an update: ``{"shipment": "s-1", "version": 3, "status": "delivered"}``. The answer, after the commit, is
``{"accepted": n}``: deliveries that were not there before.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
from typing import Annotated, Any, Final

import msgspec
import psycopg
from aiohttp import web
from psycopg_pool import AsyncConnectionPool

from pipeline.admission import AdmissionError, admit

BODY_BYTES_MAX: Final = 16 * 1024
SUBSCRIBERS_MAX: Final = 100
TOKEN_LENGTH_MIN: Final = 16
STATEMENT_SECONDS: Final = 10

Pool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]


class Update(msgspec.Struct, forbid_unknown_fields=True):
    """What a caller may say. Lengths in bytes are for the table to judge."""

    shipment: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    status: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class RefusedError(Exception):
    """What the caller did wrong."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Door:
    """The endpoint on a pool of the application's own login."""

    def __init__(self, pool: Pool, token: str, *, subscribers_max: int = SUBSCRIBERS_MAX) -> None:
        self._pool = pool
        self._authorization = f"Bearer {token}".encode()
        self._subscribers_max = subscribers_max

    def application(self) -> web.Application:
        """An aiohttp application with the one route."""
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_post("/shipment-updates/enqueue", self.handle)
        return application

    async def handle(self, request: web.Request) -> web.Response:
        try:
            self._authenticate(request)
            return web.json_response({"accepted": await self._enqueue(_update(await request.read()))})
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"error": f"a body has at most {BODY_BYTES_MAX} bytes"}, status=413)
        except RefusedError as refused:
            return web.json_response({"error": str(refused)}, status=refused.status)
        except psycopg.OperationalError:
            # Whether it committed is unknown; to ask again is harmless.
            return web.json_response({"error": "the database is away"}, status=503, headers={"Retry-After": "1"})

    def _authenticate(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, self._authorization):
            raise RefusedError(401, "send Authorization: Bearer with the token")

    async def _enqueue(self, update: Update) -> int:
        """Record, admit and mark in one commit; how many deliveries are new."""
        async with self._pool.connection() as connection, connection.transaction():
            event_id, body, subscribers = await self._record(connection, update)
            if len(subscribers) > self._subscribers_max:
                raise RefusedError(422, f"shipment has {len(subscribers)} subscribers, at most {self._subscribers_max}")
            if not subscribers:
                return 0
            try:
                deliveries = await admit(
                    connection,
                    event_id=event_id,
                    event_type="shipment.updated",
                    payload=body.encode(),
                    destinations=subscribers,
                )
            except AdmissionError as error:
                raise RefusedError(422, str(error)) from None
            await connection.execute(
                "update shipments.update set announced_at = coalesce(announced_at, clock_timestamp()) "
                "where shipment = %s and version = %s",
                (update.shipment, update.version),
            )
        return sum(delivery.created for delivery in deliveries)

    async def _record(self, connection: psycopg.AsyncConnection[Any], update: Update) -> tuple[str, str, list[str]]:
        """Its identity, bytes and subscribers, once it is on record. Raises RefusedError for another status under it."""
        key = (update.shipment, update.version)
        try:
            async with connection.transaction():
                await connection.execute(
                    "insert into shipments.update (shipment, version, status) values (%s, %s, %s) on conflict do nothing",
                    (*key, update.status),
                )
        except psycopg.errors.CheckViolation:
            raise RefusedError(422, "shipment and status have at most 200 bytes each") from None
        except psycopg.DataError as error:
            raise RefusedError(422, f"text that cannot be stored: {error}") from None
        cursor = await connection.execute(
            "select status, shipments.event_id(shipment, version), shipments.body(shipment, version, status), "
            "shipments.subscribers(shipment) from shipments.update where shipment = %s and version = %s for update",
            key,
        )
        row = await cursor.fetchone()
        if row is None or row[0] != update.status:
            raise RefusedError(409, "this version of the shipment is on record with another status")
        return row[1], row[2], row[3]


def _update(body: bytes) -> Update:
    try:
        return msgspec.json.decode(body, type=Update)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        status = 422 if isinstance(error, msgspec.ValidationError) else 400
        raise RefusedError(status, str(error)) from None


def open_pool(dsn: str) -> Pool:
    """Not opened yet: use it with ``async with``."""
    return AsyncConnectionPool(
        dsn,
        min_size=1,
        max_size=8,
        timeout=STATEMENT_SECONDS,
        open=False,
        kwargs={"autocommit": True, "options": f"-c statement_timeout={STATEMENT_SECONDS}s"},
    )


def main() -> int:
    """Listen on SHIPMENTS_PORT of this machine until interrupted; 2 where the environment is not complete."""
    dsn, token = os.environ.get("SHIPMENTS_DSN"), os.environ.get("SHIPMENTS_TOKEN", "")
    if dsn is None or len(token) < TOKEN_LENGTH_MIN:
        print(f"set SHIPMENTS_DSN, and SHIPMENTS_TOKEN to at least {TOKEN_LENGTH_MIN} characters", file=sys.stderr)
        return 2

    async def application() -> web.Application:
        pool = open_pool(dsn)
        made = Door(pool, token).application()

        async def pooled(_: web.Application) -> Any:
            async with pool:
                yield

        made.cleanup_ctx.append(pooled)
        return made

    print(json.dumps({"listening": f"http://127.0.0.1:{os.environ.get('SHIPMENTS_PORT', '8090')}"}), flush=True)
    web.run_app(application(), host="127.0.0.1", port=int(os.environ.get("SHIPMENTS_PORT", "8090")), print=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
