"""Where downloaded parts are kept: outside the working tree, shared by all checkouts of a user."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "OUTRIDER_CACHE_DIR"


def cache_directory() -> Path:
    """`$OUTRIDER_CACHE_DIR`, else `$XDG_CACHE_HOME/outrider`, else `~/.cache/outrider`."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification has relative values ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "outrider"
