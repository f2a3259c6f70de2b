"""The first source of docs/sources.md: table, file and commands as they stand there, under the logins that it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import psycopg
import pytest

from tests.support.ledger_rows import connect, scalar
from tests.support.program import program

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
# They start the development stack and take its logins: tests/integration/test_stack_commands.py.
OF_THE_STACK = {"up", "status"}


def blocks(language: str, part: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """Every line of ours, without its comment."""
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines()]
    return [line[1:] for line in words if line[0] == "outrider" and line[1] not in OF_THE_STACK]


def test_the_first_source_admits_what_is_due(
    *,
    database: str,
    role_dsns: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = PAGE.split("## A first one")[1].split("\n## ")[0]
    (schema,), (by_operator, by_reconciler) = blocks("sql", section), blocks("console", section)
    (tmp_path / "assets.toml").write_text(blocks("toml")[0], encoding="utf-8")
    settings = {"sources_directory": tmp_path}
    operator = program(monkeypatch, capsys, postgres_dsn=role_dsns["operator"], **settings)
    reconciler = program(monkeypatch, capsys, postgres_dsn=role_dsns["reconciler"], **settings)
    # Elsewhere than on a fresh stack, the reconciler that runs there has read the file by now.
    with connect(database) as owner:
        owner.execute(schema.encode())
        assert reconciler("source", "check", "--on-database").exit_code == 0
        assert reconciler("reconcile", "run", "assets").exit_code == 1  # nothing is live yet
        for line in commands(by_operator):
            assert operator(*line).exit_code == 0, line
        refused = operator("reconcile", "run", "assets")
        assert "only a login in outrider_reconciler" in refused.stderr
        for line in commands(by_reconciler):
            assert reconciler(*line).exit_code == 0, line
        assert (
            scalar(owner, "select count(*) from outrider.run where kind = 'source.pass' and finished_at is null") == 0
        )
        admitted = "select array_agg(event_id || ' ' || destination_id order by event_id) from outrider.delivery"
        assert scalar(owner, admitted) == ["asset-1 press", "asset-2 press"]
        assert scalar(owner, "select convert_from(payload, 'UTF8') from outrider.event limit 1") == '{"asset":1}'
        # What the page promises of the others.
        with pytest.raises(psycopg.Error, match="permission denied"), connect(role_dsns["operator"]) as session:
            session.execute("select from asset_processing")
