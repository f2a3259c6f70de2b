"""Receivers as the ledger knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal

from psycopg.rows import dict_row

from pipeline.core.classify import NO_RULES, Rules, RulesError, check_rules
from pipeline.core.retry import UNAUTHORIZED_DELAYS_SECONDS
from pipeline.core.sealing import UnsealError, Vault
from pipeline.ledger.pool import Pool
from pipeline.ledger.queries import query

SIGNING = "signing"
AUTHORIZATION = "authorization"
CLIENT_KEY = "client key"


@dataclass(frozen=True, slots=True)
class Secret:
    key_id: str
    secret: str = field(repr=False)
    """``whsec_`` or ``whsk_`` and base64, as Standard Webhooks has it."""


@dataclass(frozen=True, slots=True)
class Credential:
    """How a receiver is told who we are, and whom it is believed to be. PEM texts, and a header's value."""

    authorization: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    client_certificate: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)


NO_CREDENTIAL = Credential()


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
    """Those valid now, the current one first; none where ``problem`` says why."""
    is_paused: bool = False
    """By an operator."""
    rate_share: float = 1.0
    """The part of rate and burst that is in force."""
    hold: Literal["throttled", "open"] | None = None
    """Why nothing starts for now, though nobody has switched it off: it asked for a pause, or its breaker is open."""
    hold_seconds: float = 0.0
    retry_delays_seconds: tuple[float, ...] | None = None
    unauthorized_delays_seconds: tuple[float, ...] = UNAUTHORIZED_DELAYS_SECONDS
    answer_rules: Rules = field(default_factory=lambda: NO_RULES)
    static_headers: tuple[tuple[str, str], ...] = ()
    credential: Credential = NO_CREDENTIAL
    problem: str | None = None
    """Why nothing can be sent to it as it should be, in one line."""


async def load_destinations(pool: Pool, destination_ids: Sequence[str], vault: Vault) -> dict[str, Destination]:
    """Settings and secrets by id; an unknown id is absent."""
    async with pool.connection() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(query("destinations", "load_destinations"), {"destination_ids": list(destination_ids)})
        rows = await cursor.fetchall()
    return {row["destination_id"]: _destination(row, vault) for row in rows}


def _destination(row: dict[str, Any], vault: Vault) -> Destination:
    destination_id = row["destination_id"]
    secrets, given, rules = row.pop("secrets"), row.pop("credential"), row.pop("answer_rules")
    opened: dict[str, Any] = {"secrets": ()}
    try:
        opened["answer_rules"] = check_rules(rules) if rules else NO_RULES
        opened["credential"] = _credential(given, destination_id, vault) if given else NO_CREDENTIAL
        opened["secrets"] = tuple(
            Secret(key_id, vault.open(secret, purpose=SIGNING, owner=destination_id)) for key_id, secret in secrets
        )
    except UnsealError as error:
        opened["problem"] = f"a secret cannot be opened: {error}"
    except RulesError as error:
        opened["problem"] = str(error)
    delays = row.pop("retry_delays_seconds")
    return Destination(
        **row
        | opened
        | {
            "allowed_networks": tuple(ip_network(text) for text in row["allowed_networks"]),
            "retry_delays_seconds": None if delays is None else tuple(delays),
            "unauthorized_delays_seconds": tuple(row["unauthorized_delays_seconds"]),
            "static_headers": tuple(row["static_headers"].items()),
        }
    )


def _credential(given: Mapping[str, str | None], destination_id: str, vault: Vault) -> Credential:
    def opened(name: str, purpose: str) -> str | None:
        value = given[name]
        return None if value is None else vault.open(value, purpose=purpose, owner=destination_id)

    return Credential(
        authorization=opened("authorization_value", AUTHORIZATION),
        ca=given["ca"],
        client_certificate=given["client_certificate"],
        client_key=opened("client_key", CLIENT_KEY),
    )
