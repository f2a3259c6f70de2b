"""The contracts that were released last, one file for each topic in ``topics/contracts``.

``python -m topics.contract_release`` writes them anew when a version goes out; it refuses what would break readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from topics.contract import KINDS, topic_schema

FOLDER: Final = Path(__file__).parent / "contracts"
SUFFIX: Final = ".schema.json"


def released_contracts(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """By topic without prefix. Raises ValueError, which names the file, for one that is no JSON."""
    found = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            found[path.name.removesuffix(SUFFIX)] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    return found


def current_contracts() -> dict[str, dict[str, Any]]:
    """By topic without prefix, generated now."""
    return {topic: topic_schema(topic) for topic in KINDS}


def write_contracts(contracts: Mapping[str, Mapping[str, Any]], folder: Path = FOLDER) -> None:
    """One file for each; those of topics that have none are removed."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name.removesuffix(SUFFIX) not in contracts:
            path.unlink()
    for topic, schema in contracts.items():
        text = json.dumps(schema, indent=2, ensure_ascii=False)
        (folder / f"{topic}{SUFFIX}").write_text(f"{text}\n", encoding="utf-8")
