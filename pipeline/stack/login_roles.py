"""Login roles for the components, so that each has no more rights than its group role gives."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MappingProxyType

import psycopg
from psycopg import sql

from pipeline.stack.errors import StackError

GROUPS = ("application", "connector", "worker", "reconciler", "auditor", "operator", "api")
# Logical replication needs an attribute that membership in a group does not bring.
REPLICATING = frozenset({"connector"})

LOGIN_OF_COMPONENT: Mapping[str, str] = MappingProxyType(
    {
        "connector": "connector",
        "worker": "worker",
        "reconciler": "reconciler",
        "audit": "auditor",
        "api": "api",
    }
)


def create_login_roles(admin_dsn: str, *, prefix: str = "outrider_embedded") -> dict[str, tuple[str, str]]:
    """Make `<prefix>_<group>` a login in each group `outrider_<group>`, with a new password.

    Returns group -> (role, password). Roles of an earlier start are taken over. Raises StackError
    when the group roles are missing, which the migrations create.
    """
    logins: dict[str, tuple[str, str]] = {}
    with psycopg.connect(admin_dsn) as connection:
        for group in GROUPS:
            role, password = f"{prefix}_{group}", secrets.token_urlsafe(24)
            _create(connection, role, f"outrider_{group}", password, replicates=group in REPLICATING)
            logins[group] = role, password
    return logins


def drop_login_roles(admin_dsn: str, *, prefix: str) -> None:
    """Remove the roles that `create_login_roles` made."""
    with psycopg.connect(admin_dsn) as connection:
        for group in GROUPS:
            connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(f"{prefix}_{group}")))


def _create(connection: psycopg.Connection, role: str, group: str, password: str, *, replicates: bool) -> None:
    name = sql.Identifier(role)
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [group]).fetchone() is None:
        raise StackError(f"role {group} is missing: apply the migrations first (outrider migrate up)")
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
        connection.execute(sql.SQL("CREATE ROLE {}").format(name))
    # The statement carries a verifier, not the password: statements may be logged.
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    attribute = sql.SQL("REPLICATION" if replicates else "NOREPLICATION")
    connection.execute(sql.SQL("ALTER ROLE {} LOGIN {} PASSWORD {}").format(name, attribute, sql.Literal(verifier)))
    connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), name))
