"""What a destination is shown beside signatures, and secrets under a new key. Each change commits with its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg

from pipeline.core.sealing import Vault
from pipeline.ledger.destinations import AUTHORIZATION, CLIENT_KEY, SIGNING
from pipeline.ledger.operator import Act, reachable_settings, record_run
from pipeline.ledger.queries import query

RESEAL_PAGE_ROWS = 100
_PURPOSES = {"secret": SIGNING, "authorization_value": AUTHORIZATION, "client_key": CLIENT_KEY}


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialChange:
    """Columns to write by name; None removes. ``authorization_value`` and ``client_key`` are sealed on the way."""

    columns: Mapping[str, str | None]

    @property
    def summary(self) -> dict[str, str]:
        """What is recorded about it: which, and nothing of their content."""
        return {name: "removed" if value is None else "set" for name, value in self.columns.items()}


@dataclass(frozen=True, slots=True)
class SealedWith:
    """How many secrets are sealed with a key; ``key_id`` None: not at all."""

    key_id: str | None
    secrets: int


def set_credential(
    connection: psycopg.Connection, destination_id: str, change: CredentialChange, act: Act, vault: Vault
) -> None:
    """Change what is given and leave the rest. Raises NoSuchDestinationError, or CheckViolation for what does not fit."""
    columns = {
        name: value
        if value is None or name not in _PURPOSES
        else vault.seal(value, purpose=_PURPOSES[name], owner=destination_id)
        for name, value in change.columns.items()
    }
    with connection.transaction():
        reachable_settings(connection, destination_id)
        connection.execute(query("credentials", "begin_credential"), {"destination_id": destination_id})
        connection.execute(
            query("credentials", "set_credential"),
            {
                "destination_id": destination_id,
                **{name: columns.get(name) for name in _COLUMNS},
                "names": list(columns),
            },
        )
        record_run(
            connection, "destination.credential", act, {"destination_id": destination_id, "changed": change.summary}
        )


_COLUMNS = ("authorization_value", "authorization_kind", "ca", "client_certificate", "client_key")


def sealing_standing(connection: psycopg.Connection) -> list[SealedWith]:
    """Secrets by the key that seals them."""
    return [SealedWith(*row) for row in connection.execute(query("credentials", "sealing_standing"))]


def reseal(connection: psycopg.Connection, vault: Vault, act: Act, progress: Callable[[int], None]) -> int:
    """Every secret under the vault's current key, page by page; how many changed. Raises UnsealError at the first that fails.

    Each page is a transaction. Whatever was done stays done, and calling it again goes on with the rest.
    """
    changed = 0
    for kind in ("secrets", "credentials"):
        after = ""
        while rows := _page(connection, kind, after, vault):
            with connection.transaction():
                for row_id, owner, column, text in rows:
                    renewed = vault.reseal(text, purpose=_PURPOSES[column], owner=owner)
                    cursor = connection.execute(
                        query("credentials", f"reseal_{column}"), {"row_id": row_id, "before": text, "renewed": renewed}
                    )
                    changed += cursor.rowcount
            after = rows[-1][0]
            progress(changed)
    record_run(connection, "secrets.rotate_key", act, {"key_id": vault.current_id, "secrets": changed})
    return changed


def _page(connection: psycopg.Connection, kind: str, after: str, vault: Vault) -> list[tuple[str, str, str, str]]:
    """Row, destination, column and text of those that are not under the current key, of the next rows."""
    return connection.execute(
        query("credentials", f"page_of_{kind}"),
        {"after": after, "current": f"sealed:1:{vault.current_id}:%", "limit": RESEAL_PAGE_ROWS},
    ).fetchall()
