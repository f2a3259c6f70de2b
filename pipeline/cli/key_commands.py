"""``outrider key …``: keys of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import psycopg
import typer

from pipeline.admission.key_tokens import new_token
from pipeline.cli.acting import AsJson, Operator, act
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_json, visible
from pipeline.ledger.api_keys import (
    ACTIVE_KEYS_MAX,
    KeyLimits,
    Scope,
    TooManyKeysError,
    create_key,
    list_keys,
    revoke_key,
)
from pipeline.ledger.operator import operator_connection
from pipeline.settings import load_settings

EXPIRES_DAYS_MAX = 3_650


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys of the HTTP API.")
    group.command("create")(create)
    group.command("list")(show_all)
    group.command("revoke")(revoke)
    app.add_typer(group, name="key")


def create(
    name: Annotated[str, typer.Argument(help="What the key is for, for people.")],
    *,
    scope: Annotated[list[Scope], typer.Option(help="What it may do; repeatable.")],
    expires_days: Annotated[
        float | None, typer.Option(min=0.001, max=EXPIRES_DAYS_MAX, help="Days until it expires. Default: never.")
    ] = None,
    requests_per_second: Annotated[float, typer.Option(min=0.01, max=1e6, help="Per API process.")] = 500.0,
    bytes_per_second: Annotated[float, typer.Option(min=1, max=1e12, help="Per API process.")] = 16_777_216.0,
    in_flight_max: Annotated[int, typer.Option(min=1, max=100_000, help="Requests at once, per API process.")] = 128,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: this once, and never again. API processes know it within seconds."""
    if not name.isprintable() or not 1 <= len(name) <= 200:
        raise CommandError("a key's name has 1 to 200 printable characters")
    token = new_token()
    expires_at = None if expires_days is None else datetime.now(UTC) + timedelta(days=expires_days)
    with _ledger() as connection:
        create_key(
            connection,
            key_id=token.key_id,
            name=name,
            secret_sha256=token.secret_sha256,
            scopes=sorted(set(scope)),
            limits=KeyLimits(
                requests_per_second=requests_per_second, bytes_per_second=bytes_per_second, in_flight_max=in_flight_max
            ),
            created_by=act(operator, None).operator,
            expires_at=expires_at,
        )
    if as_json:
        print_json({"key_id": token.key_id, "key": str(token), "expires_at": expires_at})
        return
    print(f"created {token.key_id} for {visible(name)}; the key, shown this once:")
    print(token)


def show_all(as_json: AsJson = False) -> None:
    """List every key without its secret, revoked and expired ones too."""
    with _ledger() as connection:
        keys = list_keys(connection)
    if as_json:
        print_json([{**asdict(key), "state": key.state} for key in keys])
        return
    print_columns(
        ("KEY", "STATE", "SCOPES", "REQUESTS/S", "IN FLIGHT", "EXPIRES", "LAST USED", "NAME"),
        [
            (
                key.key_id,
                key.state,
                ",".join(key.scopes),
                f"{key.requests_per_second:g}",
                key.in_flight_max,
                key.expires_at,
                key.last_used_at,
                key.name,
            )
            for key in keys
        ],
    )


def revoke(
    key_id: Annotated[str, typer.Argument(help="The 16 characters after outr_.")], operator: Operator = None
) -> None:
    """Take a key's rights away, for good. API processes know it within seconds."""
    with _ledger() as connection:
        if not revoke_key(connection, key_id, act(operator, None).operator):
            raise CommandError(f"no key {visible(key_id)}: see outrider key list")
    print(f"revoked {key_id}")


@contextmanager
def _ledger() -> Iterator[psycopg.Connection]:
    try:
        with operator_connection(load_settings().postgres_conninfo) as connection:
            yield connection
    except TooManyKeysError:
        raise CommandError(f"{ACTIVE_KEYS_MAX} keys are active: revoke those that nobody uses") from None
    except psycopg.errors.CheckViolation as error:
        raise CommandError(f"the schema refuses it: {error.diag.message_primary}") from None
