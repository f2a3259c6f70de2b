"""The arrows between folders point the way that docs/design.md says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

COMPONENTS = ("admission", "audit", "delivery", "offsets", "reconcile")
ALLOWED = {
    "pipeline.core": {"pipeline.core"},
    "pipeline.ledger": {"pipeline.ledger", "pipeline.core"},
    **{
        f"pipeline.{name}": {
            f"pipeline.{name}",
            "pipeline.ledger",
            "pipeline.core",
            "pipeline.settings",
            "pipeline.input_files",
            "pipeline.health",
            "topics",
        }
        for name in COMPONENTS
    },
    # Reads groups and logs as offsets does.
    "pipeline.replay": {
        *("pipeline.replay", "pipeline.offsets", "pipeline.ledger", "pipeline.core", "pipeline.settings"),
        *("pipeline.input_files", "topics"),
    },
    # A report compares what these read.
    "pipeline.report": {
        *("pipeline.report", "pipeline.audit", "pipeline.offsets", "pipeline.ledger", "pipeline.core"),
        *("pipeline.settings", "topics"),
    },
    "pipeline.settings": {"pipeline.core", "pipeline.input_files", "topics"},
    "pipeline.input_files": set[str](),
    "pipeline.logs": set[str](),
    "pipeline.health": set[str](),
    "connectors": {"connectors"},
    "topics": {"topics"},
    # As another team would: all that it needs of us is what is said of the topics.
    "examples.analytics": {"examples.analytics", "topics"},
}
OURS = ("pipeline", "connectors", "topics", "examples")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
    return {name for name in names if name.split(".")[0] in OURS}


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    place = ROOT / package.replace(".", "/")
    files = [place.with_suffix(".py")] if place.with_suffix(".py").exists() else sorted(place.rglob("*.py"))
    assert files, f"{package} has no file"
    strays = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports_of(path)
        if not is_within(name, ALLOWED[package])
    }
    assert not strays
