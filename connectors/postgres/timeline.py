"""Histories of a database cluster: after each failover the WAL goes on under a new timeline number. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.postgres.lsn import parse_lsn


def parse_history(content: str) -> dict[int, int]:
    """Where each ancestor of a timeline was left, by the text of its history file.

    Each line holds a timeline, the LSN at which the next one branched off, and a reason; what does not look
    so is a comment.
    """
    switches: dict[int, int] = {}
    for line in content.splitlines():
        parts = line.split("#", 1)[0].split(None, 2)
        try:
            switches[int(parts[0])] = parse_lsn(parts[1])
        except (IndexError, ValueError):
            continue
    return switches


def is_in_history(
    lsn: int, timeline: int, *, server_timeline: int, server_lsn: int, switches: Mapping[int, int]
) -> bool:
    """Whether the server's WAL holds what ``lsn`` meant on ``timeline``.

    It does not after a failover to a server that lacked the last commits, and not after a crash or a restore that
    lost the end of the WAL. An ancestor that the history does not name counts as left behind.
    """
    if timeline == server_timeline:
        return lsn <= server_lsn
    left_at = switches.get(timeline)
    return left_at is not None and lsn <= left_at
