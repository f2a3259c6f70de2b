"""The error of a demo that cannot go on."""

from __future__ import annotations


class DemoError(Exception):
    """What went wrong, in words for the person at the keyboard."""
