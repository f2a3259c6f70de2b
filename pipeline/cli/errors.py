"""The error that a command shows as one line."""

from __future__ import annotations


class CommandError(Exception):
    """What is wrong, and what to do about it; the program prints it and exits with 1."""


class UsageError(CommandError):
    """The command line asks for something that does not fit together; the program exits with 2."""
