"""Receivers over HTTP, for those who cannot use the command line: every change is a run on record, as there.

These are rare acts, so each takes a connection of its own in a thread and uses the functions of the command line; at most
ACTS_MAX at once.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from aiohttp import web
from msgspec import UNSET
from psycopg.conninfo import make_conninfo

from pipeline.admission import asking, wire
from pipeline.admission.answers import json_response
from pipeline.admission.intake import Door
from pipeline.admission.key_ring import Caller
from pipeline.admission.problems import Kind, Refusal
from pipeline.admission.reading_endpoints import destination_of
from pipeline.admission.router import PATH_VALUES
from pipeline.core.sealing import Vault
from pipeline.ledger import operator as ledger
from pipeline.ledger.pool import Pool

ACTS_MAX = 4
CONNECT_SECONDS = 3
PING_SECONDS = 20.0
SECRET_BYTES = 32
UNVERIFIED = "awaits verification"

Body = TypeVar("Body")
Result = TypeVar("Result")
_SUBSCRIPTION = re.compile(r"[^*\x00-\x1f\x7f]+(\.\*)?|\*")


@dataclass(frozen=True, slots=True)
class Ping:
    """What came back, and the URL that it came from."""

    url: str
    verification: wire.Verification


@dataclass(frozen=True, slots=True)
class Receivers:
    """What the API needs of the delivery side, which it does not import."""

    check_url: Callable[[str], None]
    """Raises ValueError, in one line, for a URL that destinations made over the API may not have."""
    ping: Callable[[str], Awaitable[Ping]]
    """POST a signed ping to a destination, enabled or not."""
    vault: Vault
    """Seals the secrets that are made here."""
    networks: Sequence[str] = ()
    """Private networks, in CIDR notation, that destinations made over the API may lie in."""


class DestinationEndpoints:
    def __init__(self, pool: Pool, conninfo: str, door: Door, receivers: Receivers, *, body_bytes_max: int) -> None:
        self._pool = pool
        self._conninfo = make_conninfo(conninfo, connect_timeout=CONNECT_SECONDS)
        self._door = door
        self._receivers = receivers
        self._body_bytes_max = body_bytes_max
        self._acts = asyncio.Semaphore(ACTS_MAX)

    async def add(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        wanted = await self._read(request, caller, wire.NewDestination)
        destination_id = wanted.destination_id
        if not destination_id.isprintable():
            raise _invalid("destination_id", "destination_id has a character that cannot be printed")
        self._check(wanted.url, wanted.subscriptions)
        settings = self._settings(wanted, wanted.url, networks=list(self._receivers.networks))
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        act = _act(caller, UNVERIFIED if wanted.verify else None)

        def work(connection: psycopg.Connection) -> ledger.NewSecret:
            with connection.transaction():
                made = ledger.add_destination(
                    connection,
                    destination_id,
                    settings,
                    subscriptions=wanted.subscriptions,
                    secret=secret,
                    vault=self._receivers.vault,
                    act=act,
                )
                if wanted.verify:
                    ledger.switch_destination(connection, destination_id, act, enabled=False)
            return made

        made = await self._act(work)
        verification = await self._verify(destination_id, caller) if wanted.verify else None
        return json_response(
            {
                "destination": await destination_of(self._pool, destination_id),
                "signing_secret": wire.SigningSecret(key_id=made.key_id, secret=made.secret),
                "verification": verification,
            },
            201,
        )

    async def change(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        destination_id = _destination_id(request)
        wanted = await self._read(request, caller, wire.DestinationChange)
        url = None if wanted.url is UNSET else wanted.url
        self._check(url, [*wanted.subscribe, *wanted.unsubscribe])
        settings = self._settings(wanted, url, networks=None)
        if not (settings.given() or wanted.subscribe or wanted.unsubscribe):
            raise _invalid("body", "nothing to change", "name at least one member")
        await self._act(
            lambda connection: ledger.set_destination(
                connection,
                destination_id,
                settings,
                subscribe=wanted.subscribe,
                unsubscribe=wanted.unsubscribe,
                act=_act(caller, None),
            )
        )
        return json_response(await destination_of(self._pool, destination_id))

    async def enable(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        return await self._switch(request, caller, enabled=True)

    async def disable(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        return await self._switch(request, caller, enabled=False)

    async def verify(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        destination_id = _destination_id(request)
        await destination_of(self._pool, destination_id)
        verification = await self._verify(destination_id, caller)
        if not verification.success:
            raise Refusal(
                Kind.VERIFICATION,
                verification.error or f"{verification.outcome}: it answered {verification.status}",
                mend="have the receiver answer the ping with 2xx, then verify again",
            )
        return json_response(
            {"destination": await destination_of(self._pool, destination_id), "verification": verification}
        )

    async def rotate_secret(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        destination_id = _destination_id(request)
        rotation = await self._read(request, caller, wire.Rotation)
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        made = await self._act(
            lambda connection: ledger.rotate_secret(
                connection,
                destination_id,
                secret,
                _act(caller, None),
                overlap_seconds=rotation.overlap_seconds,
                vault=self._receivers.vault,
            )
        )
        return json_response(wire.SigningSecret(key_id=made.key_id, secret=made.secret), 201)

    async def _switch(self, request: web.BaseRequest, caller: Caller, *, enabled: bool) -> web.Response:
        destination_id = _destination_id(request)
        reason = (await self._read(request, caller, wire.Reason)).reason
        act = _act(caller, asking.storable(reason, "reason"))
        await self._act(lambda connection: ledger.switch_destination(connection, destination_id, act, enabled=enabled))
        return json_response(await destination_of(self._pool, destination_id))

    async def _verify(self, destination_id: str, caller: Caller) -> wire.Verification:
        """Ping it, and enable it where that succeeds and the URL is still the one that answered."""
        try:
            async with asyncio.timeout(PING_SECONDS), self._acts:
                ping = await self._receivers.ping(destination_id)
        except TimeoutError:
            return wire.Verification(
                success=False,
                outcome="timeout",
                status=None,
                error=f"no answer within {PING_SECONDS:g} s",
                seconds=PING_SECONDS,
            )
        if not ping.verification.success:
            return ping.verification

        def work(connection: psycopg.Connection) -> None:
            with connection.transaction():
                url, _ = ledger.reachable_settings(connection, destination_id)
                if url != ping.url:
                    raise Refusal(Kind.VERIFICATION, "the URL was changed during verification", mend="verify again")
                ledger.switch_destination(connection, destination_id, _act(caller, "verified"), enabled=True)

        await self._act(work)
        return ping.verification

    async def _read(self, request: web.BaseRequest, caller: Caller, kind: type[Body]) -> Body:
        asking.expect_json(request)
        async with self._door.body(request, caller.meter, bytes_max=self._body_bytes_max) as body:
            return asking.decode(body, kind)

    async def _act(self, work: Callable[[psycopg.Connection], Result]) -> Result:
        def run() -> Result:
            with ledger.operator_connection(self._conninfo) as connection:
                return work(connection)

        try:
            async with self._acts:
                # Not cancelled with the request: what it began it ends, and the statement's time-out bounds it.
                return await asyncio.shield(asyncio.to_thread(run))
        except ledger.NoSuchDestinationError:
            raise Refusal(
                Kind.NOT_FOUND, "there is no such destination", field="destination_id", mend="see GET /v1/destinations"
            ) from None
        except ledger.DestinationExistsError:
            raise Refusal(
                Kind.EXISTS, "a destination of this name exists", field="destination_id", mend="PATCH it instead"
            ) from None
        except (psycopg.errors.CheckViolation, psycopg.DataError) as error:
            raise _invalid("body", f"the schema refuses it: {error.diag.message_primary or error}") from None

    def _check(self, url: str | None, event_types: Sequence[str]) -> None:
        for event_type in event_types:
            if not _SUBSCRIPTION.fullmatch(event_type):
                raise _invalid(
                    "subscriptions", f"{event_type!r} is no subscription", "write a type, a prefix as in 'a.*', or '*'"
                )
        if url is not None:
            try:
                self._receivers.check_url(url)
            except ValueError as error:
                raise _invalid("url", str(error), "give a URL that everybody can reach over https") from None

    @staticmethod
    def _settings(
        limits: wire.DestinationLimits, url: str | None, *, networks: list[str] | None
    ) -> ledger.DestinationSettings:
        given = {name: getattr(limits, name) for name in wire.DestinationLimits.__struct_fields__}
        return ledger.DestinationSettings(
            url=url,
            allowed_networks=networks or None,
            **{name: value for name, value in given.items() if value is not UNSET},
        )


def _destination_id(request: web.BaseRequest) -> str:
    return asking.storable(request[PATH_VALUES]["destination_id"], "destination_id")


def _act(caller: Caller, reason: str | None) -> ledger.Act:
    return ledger.Act(f"api:{caller.key_id}", reason)


def _invalid(field: str, detail: str, mend: str | None = None) -> Refusal:
    return Refusal(Kind.INVALID, detail, field=field, mend=mend)
