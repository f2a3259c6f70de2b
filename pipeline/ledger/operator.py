"""What operators change about receivers. Each change commits together with the run that records it.

Synchronous: these are the acts of one person at a keyboard, one connection and one transaction each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row, dict_row, scalar_row
from psycopg.types.json import Json

from pipeline.core.sealing import Vault
from pipeline.core.signing import PRIVATE_PREFIX, VERSION, VERSION_ED25519, public_key_of
from pipeline.ledger.destinations import SIGNING
from pipeline.ledger.pool import STATEMENT_TIMEOUT_SECONDS
from pipeline.ledger.queries import query


class NoSuchDestinationError(LookupError):
    """There is no destination of that id."""


class DestinationExistsError(ValueError):
    """A destination of that id is there already; nothing changed."""


@dataclass(frozen=True, slots=True)
class Act:
    """Who does it and why: what the run row keeps."""

    operator: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings:
    """None: the schema's default on adding, no change on setting. Units are in the names."""

    url: str | None = None
    start_rate_per_second: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    timeout_seconds: float | None = None
    retry_first_delay_seconds: float | None = None
    retry_factor: float | None = None
    retry_max_delay_seconds: float | None = None
    retry_max_attempts: int | None = None
    retry_max_age_seconds: float | None = None
    allowed_networks: list[str] | None = None
    answer_rules: dict[str, str] | None = None
    retry_delays_seconds: list[float] | None = None
    """An empty list: the growing delays again."""
    unauthorized_delays_seconds: list[float] | None = None
    static_headers: dict[str, str] | None = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class SecretEntry:
    """A signing key without its secret."""

    key_id: str
    scheme: str
    """``v1`` or ``v1a``."""
    public_key: str | None
    """What receivers check v1a with."""
    sealed_with: str | None
    """Id of the key that seals it at rest; None where it is stored as it is."""
    created_at: datetime
    valid_until: datetime | None
    is_valid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationEntry:
    destination_id: str
    url: str
    enabled: bool
    disabled_reason: str | None
    paused_at: datetime | None
    paused_reason: str | None
    start_rate_per_second: float
    burst: int
    concurrency: int
    timeout_seconds: float
    retry_first_delay_seconds: float
    retry_factor: float
    retry_max_delay_seconds: float
    retry_max_attempts: int
    retry_max_age_seconds: float
    allowed_networks: list[str]
    answer_rules: dict[str, str]
    retry_delays_seconds: list[float] | None
    unauthorized_delays_seconds: list[float]
    static_headers: dict[str, str]
    authorization: str | None
    """Its kind: Basic or Bearer."""
    has_ca: bool
    has_client_certificate: bool
    created_at: datetime
    updated_at: datetime
    subscriptions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationPace:
    """What is in force at a destination now, after what its answers have said."""

    rate_in_force: float
    burst_in_force: int
    rate_share: float
    """The part of rate and burst that is in force; below 1 after throttling and time-outs, and growing again."""
    tokens: float
    """Starts that may come at once."""
    slowed_at: datetime | None
    throttled_until: datetime | None
    """It asked to be left alone until then."""
    breaker: Literal["closed", "open", "half_open"]
    failures_in_a_row: int
    breaker_open_until: datetime | None
    probe_until: datetime | None
    backlogged_until: datetime | None
    """Until then new deliveries wait in the ledger instead of in Kafka."""


@dataclass(frozen=True, slots=True)
class NewSecret:
    key_id: str
    secret: str = field(repr=False)
    public_key: str | None = None


@contextmanager
def operator_connection(conninfo: str) -> Iterator[psycopg.Connection]:
    """A session in autocommit for a command; a statement of it is cancelled after STATEMENT_TIMEOUT_SECONDS."""
    with psycopg.connect(conninfo, autocommit=True, application_name="outrider cli") as connection:
        connection.execute(f"set statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'; set timezone = 'UTC'")
        yield connection


def record_run(connection: psycopg.Connection, kind: str, act: Act, counts: dict[str, Any]) -> None:
    """Write the run of an act that is over when the caller's transaction commits."""
    connection.execute(
        query("operator", "record_run"),
        {"kind": kind, "operator": act.operator, "reason": act.reason, "counts": Json(counts)},
    )


def add_destination(
    connection: psycopg.Connection,
    destination_id: str,
    settings: DestinationSettings,
    *,
    subscriptions: Sequence[str],
    secret: str,
    vault: Vault,
    act: Act,
) -> NewSecret:
    """Raises DestinationExistsError, or psycopg.errors.CheckViolation for a value that the schema refuses."""
    with connection.transaction():
        parameters = {**_parameters(settings), "destination_id": destination_id}
        added = connection.execute(query("operator", "add_destination"), parameters).fetchone()
        if added is None:
            raise DestinationExistsError(destination_id)
        connection.execute(query("operator", "set_destination"), parameters)
        _subscribe(connection, destination_id, subscriptions)
        made = _add_secret(connection, destination_id, secret, vault)
        counts = {"destination_id": destination_id, **settings.given(), "subscribed": list(subscriptions)}
        record_run(connection, "destination.add", act, counts)
    return made


def set_destination(
    connection: psycopg.Connection,
    destination_id: str,
    settings: DestinationSettings,
    *,
    subscribe: Sequence[str],
    unsubscribe: Sequence[str],
    act: Act,
) -> None:
    """Change what is given. Raises NoSuchDestinationError, or CheckViolation for a value that the schema refuses."""
    with connection.transaction():
        cursor = connection.execute(
            query("operator", "set_destination"), {**_parameters(settings), "destination_id": destination_id}
        )
        if cursor.rowcount == 0:
            raise NoSuchDestinationError(destination_id)
        _subscribe(connection, destination_id, subscribe)
        connection.execute(
            query("operator", "unsubscribe"), {"destination_id": destination_id, "event_types": list(unsubscribe)}
        )
        counts = {"destination_id": destination_id, **settings.given()}
        counts |= {"subscribed": list(subscribe), "unsubscribed": list(unsubscribe)}
        record_run(connection, "destination.set", act, counts)
        connection.execute(query("operator", "wake_reconciler"))


def switch_destination(connection: psycopg.Connection, destination_id: str, act: Act, *, enabled: bool) -> bool:
    """Enable or disable; False where it was so already, and then nothing is recorded. Raises NoSuchDestinationError."""
    with connection.transaction():
        reachable_settings(connection, destination_id)
        switched = connection.execute(
            query("operator", "switch_destination"),
            {"destination_id": destination_id, "enabled": enabled, "reason": act.reason},
        ).fetchone()
        if switched is None:
            return False
        kind = "destination.enable" if enabled else "destination.disable"
        record_run(connection, kind, act, {"destination_id": destination_id})
        connection.execute(query("operator", "wake_reconciler"))
    return True


def pause_destination(connection: psycopg.Connection, destination_id: str, act: Act) -> bool:
    """Start nothing until it is resumed, and go on admitting; False where it was paused already. Raises NoSuchDestinationError."""
    return _hold(connection, destination_id, act, "pause")


def resume_destination(connection: psycopg.Connection, destination_id: str, act: Act) -> bool:
    """End a pause, a Retry-After and an open breaker; False where nothing held it. Raises NoSuchDestinationError."""
    return _hold(connection, destination_id, act, "resume")


def _hold(connection: psycopg.Connection, destination_id: str, act: Act, verb: Literal["pause", "resume"]) -> bool:
    with connection.transaction():
        reachable_settings(connection, destination_id)
        changed = connection.execute(
            query("operator", f"{verb}_destination"), {"destination_id": destination_id, "reason": act.reason}
        ).fetchone()
        if changed is None:
            return False
        record_run(connection, f"destination.{verb}", act, {"destination_id": destination_id})
        connection.execute(query("operator", "wake_reconciler"))
    return True


def pace_of_destination(connection: psycopg.Connection, destination_id: str) -> DestinationPace:
    """Raises NoSuchDestinationError."""
    cursor = connection.cursor(row_factory=class_row(DestinationPace))
    pace = cursor.execute(query("operator", "pace_of_destination"), {"destination_id": destination_id}).fetchone()
    if pace is None:
        raise NoSuchDestinationError(destination_id)
    return pace


def rotate_secret(
    connection: psycopg.Connection,
    destination_id: str,
    secret: str,
    act: Act,
    *,
    overlap_seconds: float,
    vault: Vault,
) -> NewSecret:
    """A new current secret of its scheme; the one before signs too for the overlap. Raises NoSuchDestinationError.

    ``secret``: ``whsec_`` for v1, or ``whsk_`` for v1a, which then signs beside v1.
    """
    with connection.transaction():
        reachable_settings(connection, destination_id)
        connection.execute(
            query("operator", "retire_secrets"),
            {"destination_id": destination_id, "overlap_seconds": overlap_seconds, "scheme": _scheme(secret)},
        )
        made = _add_secret(connection, destination_id, secret, vault)
        counts = {"destination_id": destination_id, "key_id": made.key_id, "overlap_seconds": overlap_seconds}
        record_run(connection, "destination.rotate_secret", act, counts)
    return made


def reachable_settings(connection: psycopg.Connection, destination_id: str) -> tuple[str, list[str]]:
    """URL and allowed networks, locked to the end of the caller's transaction. Raises NoSuchDestinationError."""
    cursor = connection.cursor(row_factory=dict_row)
    row = cursor.execute(query("operator", "lock_destination"), {"destination_id": destination_id}).fetchone()
    if row is None:
        raise NoSuchDestinationError(destination_id)
    return row["url"], row["allowed_networks"]


def list_destinations(connection: psycopg.Connection, destination_id: str | None = None) -> list[DestinationEntry]:
    """All of them by id, or that one."""
    cursor = connection.cursor(row_factory=class_row(DestinationEntry))
    return cursor.execute(query("operator", "list_destinations"), {"destination_id": destination_id}).fetchall()


def list_secrets(connection: psycopg.Connection, destination_id: str) -> list[SecretEntry]:
    """Newest first."""
    cursor = connection.cursor(row_factory=class_row(SecretEntry))
    return cursor.execute(query("operator", "list_secrets"), {"destination_id": destination_id}).fetchall()


def unsettled_by_state(connection: psycopg.Connection, destination_id: str) -> dict[str, int]:
    cursor = connection.execute(query("operator", "unsettled_by_state"), {"destination_id": destination_id})
    return dict(cursor.fetchall())


def _subscribe(connection: psycopg.Connection, destination_id: str, event_types: Sequence[str]) -> None:
    connection.execute(
        query("operator", "subscribe"), {"destination_id": destination_id, "event_types": list(event_types)}
    )


def _add_secret(connection: psycopg.Connection, destination_id: str, secret: str, vault: Vault) -> NewSecret:
    public_key = public_key_of(secret) if _scheme(secret) == VERSION_ED25519 else None
    cursor = connection.cursor(row_factory=scalar_row)
    parameters = {
        "destination_id": destination_id,
        "secret": vault.seal(secret, purpose=SIGNING, owner=destination_id),
    }
    if public_key is None:  # the API's role may write no more than this
        key_id = cursor.execute(query("operator", "add_secret"), parameters).fetchone()
    else:
        key_id = cursor.execute(
            query("operator", "add_private_key"), {**parameters, "public_key": public_key}
        ).fetchone()
    return NewSecret(str(key_id), secret, public_key)


def _scheme(secret: str) -> str:
    return VERSION_ED25519 if secret.startswith(PRIVATE_PREFIX) else VERSION


def _parameters(settings: DestinationSettings) -> dict[str, Any]:
    values = asdict(settings)
    for name in ("answer_rules", "static_headers"):
        values[name] = None if values[name] is None else Json(values[name])
    return values
