"""Which rows make a claim fail, so that the others need not wait for them. No I/O of its own.

A claim is one statement: where one row's value cannot be cast, the whole page fails, and the error names no row. But a claim
must pass over the ids that ``%(refused)s`` names, so naming all others leaves it one row. Halves of a page that succeed are
admitted on the way; a row that fails with all others left out is the one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import psycopg

from pipeline.reconcile.source_result import is_of_a_row

CANDIDATES_MAX = 1_000
"""Rows that are due and can be left out at once. Each is compared with each row that the claim looks at."""
ISOLATED_MAX = 100
"""Rows of one pass that may fail one by one; beyond them something is wrong with the claim, not with rows."""


async def isolate(
    event_ids: Sequence[str],
    *,
    take: Callable[[Sequence[str]], Awaitable[bool]],
    refuse: Callable[[str, psycopg.Error], Awaitable[None]],
    is_over: Callable[[bool], bool],
) -> bool:
    """Take all of these that can be taken, and refuse those that fail alone; whether there was any of either.

    ``take`` admits a group with all others left out, and says whether there was something to admit. Together they all have
    failed already. ``is_over`` is asked before each group, with whether there was any so far. Raises psycopg.Error for what no
    row explains.
    """
    has_moved = False
    groups = _halves(event_ids)
    while groups and not is_over(has_moved):
        group = groups.pop()
        try:
            has_moved |= await take(group)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            if len(group) > 1:
                groups += _halves(group)
                continue
            await refuse(group[0], error)
            has_moved = True
    return has_moved


def _halves(event_ids: Sequence[str]) -> list[Sequence[str]]:
    """The first half last, since it is taken first. One id is its own half."""
    middle = len(event_ids) // 2
    return [half for half in (event_ids[middle:], event_ids[:middle]) if half]
