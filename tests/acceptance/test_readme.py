"""The README's commands and SQL, run as they stand there, under the roles that it gives them to."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest

from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.support.delivery_world import wait_until
from tests.support.program import Outrider, program

README = Path(__file__).resolve().parents[2] / "README.md"
# They start the development stack, which tests/integration/test_stack_commands.py does.
OF_THE_STACK = {"up", "down", "status", "psql"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[list[str]]:
    """Every line of ours in a console block, without its comment."""
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0].endswith("outrider") and line[1] not in OF_THE_STACK]


def admission() -> str:
    (text,) = (block for block in blocks("sql") if "outrider.admit" in block)
    return text


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], role_dsns: dict[str, str]
) -> Outrider:
    return program(monkeypatch, capsys, postgres_dsn=role_dsns["operator"])


@pytest.fixture
def owner(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def test_the_commands_and_the_transaction_do_what_they_say(
    owner: psycopg.Connection, outrider: Outrider, role_dsns: dict[str, str]
) -> None:
    owner.execute("create table asset (asset_id integer primary key, state text not null)")
    owner.execute("insert into asset values (42, 'uploaded')")
    owner.execute("grant select, update on asset to outrider_application")
    given = commands()
    (add,) = (line for line in given if line[:2] == ["destination", "add"])
    assert outrider(*add).exit_code == 0

    with psycopg.connect(role_dsns["application"], autocommit=True) as application:
        for _ in range(2):
            application.execute(admission().encode())
    assert owner.execute("select state from asset").fetchone() == ("processed",)
    rows = owner.execute("select delivery_id, destination_id, state from outrider.delivery").fetchall()
    ((delivery_id, destination_id, state),) = rows
    assert (destination_id, state) == ("acme", "enqueued")
    assert owner.execute("select count(*) from outrider.dispatch_outbox").fetchone() == (1,)

    owner.execute(
        "update outrider.delivery set state = 'dead', lost_after = null, settled_at = now() where delivery_id = %s",
        (delivery_id,),
    )
    for line in given:
        if line == add:
            continue
        result = outrider(*[delivery_id if word == "dlv_…" else word for word in line])
        if line[:2] == ["destination", "test"]:
            # There is no such receiver; what matters is that the command exists and says so in a line.
            assert (result.exit_code, "Traceback" in result.stderr) == (1, False)
        else:
            assert result.exit_code == 0, f"{line}: {result.stderr}"
    assert owner.execute("select state, dispatch_seq from outrider.delivery").fetchone() == ("enqueued", 2)


def test_the_logins_can_be_made_as_shown(owner: psycopg.Connection) -> None:
    (text,) = (block for block in blocks("sql") if "create role" in block)
    names = re.findall(r"create role (\w+)", text)
    assert names
    with owner.transaction(force_rollback=True):
        owner.execute(text.encode())
        for name in names:
            assert owner.execute("select pg_has_role(%s, 'outrider_operator', 'member')", (name,)).fetchone() == (
                False,
            )


def test_the_request_over_http_is_accepted_once(
    outrider: Outrider, component: StartComponent, owner: psycopg.Connection
) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("the README shows the request for curl, which is not here")
    (text,) = blocks("sh")
    (create,) = (line for line in commands() if line[:2] == ["key", "create"])
    key = outrider(*create, "--json").json["key"]
    (add,) = (line for line in commands() if line[:2] == ["destination", "add"])
    assert outrider(*add).exit_code == 0
    (port,) = free_ports(1)
    api = component("api", api_port=port)
    wait_until(lambda: _answers(port), f"the API answers\n{api.log_tail()}")
    answers = [
        json.loads(
            subprocess.run(
                ["bash", "-c", text],
                env={**os.environ, "API_URL": f"http://127.0.0.1:{port}", "API_KEY": key},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        )
        for _ in range(2)
    ]
    assert [(answer["accepted"], answer["existing"]) for answer in answers] == [(1, 0), (0, 1)]
    assert owner.execute("select count(*) from outrider.delivery").fetchone() == (1,)


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
