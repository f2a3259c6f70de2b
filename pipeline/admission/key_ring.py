"""The active API keys in memory, read anew every two seconds.

So a request with a wrong key costs the database nothing, and a new key, a revocation or a changed limit takes effect
within REFRESH_SECONDS. When the database has been away for STALE_SECONDS, nobody is let in any more.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
import structlog

from pipeline.admission.key_limits import KeyMeter
from pipeline.admission.key_tokens import parse_token
from pipeline.admission.problems import Kind, Refusal, unavailable
from pipeline.ledger.api_keys import ActiveKey, Scope, load_active_keys, record_uses
from pipeline.ledger.pool import Pool

REFRESH_SECONDS = 2.0
STALE_SECONDS = 30.0
USES_SECONDS = 60.0
"""How often the times of last use are written, for all keys in one statement."""
AUTHORIZATION_LENGTH_MAX = 200

_log = structlog.get_logger(__name__)
_NO_KEY = bytes(32)


@dataclass(frozen=True, slots=True)
class Caller:
    key_id: str
    scopes: frozenset[Scope]
    meter: KeyMeter


class KeyRing:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._keys: dict[str, ActiveKey] = {}
        self._meters: dict[str, KeyMeter] = {}
        self._uses: dict[str, datetime] = {}
        self._read_at: float | None = None  # on time.monotonic()

    def authenticate(self, authorization: str | None) -> Caller:
        """The caller of a request with this Authorization header. Raises Refusal."""
        if authorization is None:
            raise _unauthenticated("the request has no Authorization header")
        scheme, _, text = authorization.partition(" ")
        token = parse_token(text.strip()) if len(authorization) <= AUTHORIZATION_LENGTH_MAX else None
        if scheme.lower() != "bearer" or token is None:
            raise _unauthenticated("the Authorization header holds no API key")
        if self._read_at is None or time.monotonic() - self._read_at > STALE_SECONDS:
            raise unavailable("API keys cannot be checked while the database is away")
        key = self._keys.get(token.key_id)
        # Compared in any case, so that the time tells nothing about which key ids there are.
        is_right = token.matches(_NO_KEY if key is None else key.secret_sha256)
        now = datetime.now(UTC)
        if key is None or not is_right or (key.expires_at is not None and key.expires_at <= now):
            raise _unauthenticated("the API key is unknown, expired or revoked")
        self._uses[key.key_id] = now
        return Caller(key.key_id, key.scopes, self._meters[key.key_id])

    async def refresh(self) -> None:
        """Read the keys. Raises psycopg.Error."""
        started = time.monotonic()
        self._keys = {key.key_id: key for key in await load_active_keys(self._pool)}
        for key in self._keys.values():
            meter = self._meters.get(key.key_id)
            if meter is None:
                self._meters[key.key_id] = KeyMeter(key.limits, now=started)
            else:
                meter.configure(key.limits, now=started)
        gone = [key_id for key_id, meter in self._meters.items() if key_id not in self._keys and meter.is_idle]
        for key_id in gone:
            del self._meters[key_id]
        self._read_at = started

    async def run(self) -> None:
        """Keep the keys fresh and write down their uses, until cancelled."""
        written_at = time.monotonic()
        try:
            while True:
                try:
                    await self.refresh()
                    if time.monotonic() - written_at >= USES_SECONDS:
                        await self.write_uses()
                        written_at = time.monotonic()
                except psycopg.Error as error:
                    _log.warning("API keys are not refreshed", error=" ".join(str(error).split()))
                await asyncio.sleep(REFRESH_SECONDS)
        finally:
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self.write_uses()
            except (TimeoutError, psycopg.Error) as error:
                _log.warning("last uses of API keys are lost", error=" ".join(str(error).split()) or "time-out")

    async def write_uses(self) -> None:
        """Write down the uses since the last time. Raises psycopg.Error; then they are kept."""
        uses, self._uses = self._uses, {}
        try:
            if uses:
                await record_uses(self._pool, uses)
        except BaseException:
            self._uses = {**uses, **self._uses}
            raise


def _unauthenticated(detail: str) -> Refusal:
    return Refusal(
        Kind.UNAUTHENTICATED,
        detail,
        field="Authorization",
        mend="send 'Authorization: Bearer outr_…' with a key of outrider key create",
    )
