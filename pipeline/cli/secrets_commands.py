"""``outrider secrets …``: the keys that seal secrets at rest."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Annotated

import typer

from pipeline.cli.acting import AsJson, Operator, OptionalReason, act
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_columns, print_json
from pipeline.core.sealing import SealingKeyError, UnsealError, new_key
from pipeline.ledger.credentials import reseal, sealing_standing
from pipeline.ledger.operator import operator_connection
from pipeline.settings import load_settings


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys that seal secrets at rest.")
    group.command("new-key")(make_key)
    group.command("status")(status)
    group.command("rotate-key")(rotate_key)
    app.add_typer(group, name="secrets")


def make_key(key_id: Annotated[str, typer.Argument(help="A name for it, such as 2026a.")]) -> None:
    """Print a new key for OUTRIDER_SECRETS_KEYS. It is stored nowhere: who loses it loses what it seals."""
    try:
        print(new_key(key_id))
    except SealingKeyError as error:
        raise UsageError(str(error)) from None


def status(as_json: AsJson = False) -> None:
    """How many secrets each key seals. Exit code 1 where some are not under the current key."""
    settings = load_settings()
    current = settings.vault.current_id
    with operator_connection(settings.postgres_conninfo) as connection:
        standing = sealing_standing(connection)
    if as_json:
        print_json({"current": current, "sealed": standing})
    else:
        print_columns(
            ("KEY", "SECRETS", ""),
            [(s.key_id or "none", s.secrets, _note(s.key_id, current, settings.vault.keys)) for s in standing],
        )
    raise typer.Exit(1 if any(s.key_id != current for s in standing) else 0)


def rotate_key(operator: Operator = None, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Put every secret under the first key of OUTRIDER_SECRETS_KEYS, also those that were not sealed.

    The other keys there open what is sealed with them; leave each out once `secrets status` shows nothing under it.
    """
    settings = load_settings()
    vault = settings.vault
    if vault.current_id is None:
        raise CommandError("OUTRIDER_SECRETS_KEYS is not set: make a key with outrider secrets new-key")
    with operator_connection(settings.postgres_conninfo) as connection:
        try:
            changed = reseal(connection, vault, act(operator, reason), _progress)
        except UnsealError as error:
            raise CommandError(f"a secret cannot be opened: {error}; those before it are done") from None
    if as_json:
        print_json({"current": vault.current_id, "changed": changed})
    else:
        print(f"{changed} secrets put under key {vault.current_id}")


def _progress(changed: int) -> None:
    print(f"{changed} secrets", file=sys.stderr)


def _note(key_id: str | None, current: str | None, known: Container[str]) -> str:
    if key_id == current:
        return "current" if key_id is not None else "stored as they are"
    if key_id is None:
        return "stored as they are: rotate-key seals them"
    return "rotate-key renews them" if key_id in known else "not in OUTRIDER_SECRETS_KEYS: these cannot be opened"
