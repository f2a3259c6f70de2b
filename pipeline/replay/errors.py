"""What can go wrong with a replay; each message is one line for the person who asked."""

from __future__ import annotations


class ReplayError(Exception):
    """It cannot be done as asked."""
