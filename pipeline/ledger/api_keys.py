"""Keys of the HTTP API as the ledger keeps them: never the key itself, only the hash of its secret part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum

import psycopg
from psycopg.rows import class_row

from pipeline.ledger.pool import Pool
from pipeline.ledger.queries import query

ACTIVE_KEYS_MAX = 10_000
"""Each API process holds all active keys in memory."""


class Scope(StrEnum):
    """What a key may do."""

    ADMIT = "admit"
    READ = "read"
    OPERATE = "operate"
    WAKE = "wake"


class TooManyKeysError(Exception):
    """ACTIVE_KEYS_MAX keys are active; nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Of one key in one API process."""

    requests_per_second: float
    bytes_per_second: float
    in_flight_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveKey:
    key_id: str
    secret_sha256: bytes = field(repr=False)
    scopes: frozenset[Scope]
    limits: KeyLimits
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """A key for people."""

    key_id: str
    name: str
    scopes: list[str]
    requests_per_second: float
    bytes_per_second: float
    in_flight_max: int
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    last_used_at: datetime | None
    is_expired: bool

    @property
    def state(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.is_expired else "active"


def create_key(
    connection: psycopg.Connection,
    *,
    key_id: str,
    name: str,
    secret_sha256: bytes,
    scopes: Sequence[Scope],
    limits: KeyLimits,
    created_by: str,
    expires_at: datetime | None,
) -> None:
    """Raises TooManyKeysError, or psycopg.errors.CheckViolation for a value that the schema refuses."""
    row = connection.execute(
        query("api_keys", "create_key"),
        {
            "key_id": key_id,
            "name": name,
            "secret_sha256": secret_sha256,
            "scopes": [scope.value for scope in scopes],
            **asdict(limits),
            "created_by": created_by,
            "expires_at": expires_at,
            "active_max": ACTIVE_KEYS_MAX,
        },
    ).fetchone()
    if row is None:
        raise TooManyKeysError


def list_keys(connection: psycopg.Connection) -> list[KeyEntry]:
    """All of them, the oldest first."""
    return connection.cursor(row_factory=class_row(KeyEntry)).execute(query("api_keys", "list_keys")).fetchall()


def revoke_key(connection: psycopg.Connection, key_id: str, revoked_by: str) -> bool:
    """False where there is no such key. Running API processes take it up when they read the keys next."""
    parameters = {"key_id": key_id, "revoked_by": revoked_by}
    return connection.execute(query("api_keys", "revoke_key"), parameters).fetchone() is not None


async def load_active_keys(pool: Pool) -> list[ActiveKey]:
    """At most ACTIVE_KEYS_MAX, the oldest first."""
    async with pool.connection() as connection:
        cursor = await connection.execute(query("api_keys", "active_keys"), {"limit": ACTIVE_KEYS_MAX})
        rows = await cursor.fetchall()
    return [
        ActiveKey(
            key_id=key_id,
            secret_sha256=secret_sha256,
            scopes=frozenset(map(Scope, scopes)),
            limits=KeyLimits(
                requests_per_second=requests_per_second, bytes_per_second=bytes_per_second, in_flight_max=in_flight_max
            ),
            expires_at=expires_at,
        )
        for key_id, secret_sha256, scopes, requests_per_second, bytes_per_second, in_flight_max, expires_at in rows
    ]


async def record_uses(pool: Pool, uses: Mapping[str, datetime]) -> None:
    """Write when keys were used last; a later time that is there already stays."""
    async with pool.connection() as connection:
        await connection.execute(
            query("api_keys", "record_uses"), {"key_ids": list(uses), "used_at": list(uses.values())}
        )
