"""Names on which the demo's application and its receiver agree."""

from __future__ import annotations

HOOKS_PATH = "/hooks/"
"""Followed by the destination's id, percent-encoded."""
LIVE_PATH = "/livez"
ASSET_HEADER = "x-demo-asset"
"""Header of each event: the key of its business row."""
