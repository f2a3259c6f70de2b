"""Receivers as the ledger knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Literal

from psycopg.rows import dict_row

from pipeline.ledger.pool import Pool
from pipeline.ledger.queries import query


@dataclass(frozen=True, slots=True)
class Secret:
    key_id: str
    secret: str = field(repr=False)
    """``whsec_`` and base64, as Standard Webhooks has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    destination_id: str
    url: str
    enabled: bool
    start_rate_per_second: float
    burst: int
    concurrency: int
    timeout_seconds: float
    retry_first_delay_seconds: float
    retry_factor: float
    retry_max_delay_seconds: float
    retry_max_attempts: int
    retry_max_age_seconds: float
    allowed_networks: tuple[IPv4Network | IPv6Network, ...]
    secrets: tuple[Secret, ...]
    """Those valid now, the current one first."""
    is_paused: bool = False
    """By an operator."""
    rate_share: float = 1.0
    """The part of rate and burst that is in force."""
    hold: Literal["throttled", "open"] | None = None
    """Why nothing starts for now, though nobody has switched it off: it asked for a pause, or its breaker is open."""
    hold_seconds: float = 0.0


async def load_destinations(pool: Pool, destination_ids: Sequence[str]) -> dict[str, Destination]:
    """Settings and secrets by id; an unknown id is absent."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(query("destinations", "load_destinations"), {"destination_ids": list(destination_ids)})
        rows = await cursor.fetchall()
    destinations = {}
    for row in rows:
        networks = tuple(ip_network(text) for text in row.pop("allowed_networks"))
        secrets = tuple(Secret(key_id, secret) for key_id, secret in row.pop("secrets"))
        destinations[row["destination_id"]] = Destination(**row, allowed_networks=networks, secrets=secrets)
    return destinations
