"""Which changes are published: for any stream, cut and resumed anywhere, each exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.progress import Progress

# A stream is source transactions as (LSN of the commit record, LSN of its end, number of changes).
Transaction = tuple[int, int, int]


@st.composite
def streams(draw: st.DrawFn) -> list[Transaction]:
    end = 100
    transactions = []
    for _ in range(draw(st.integers(1, 6))):
        # A commit record may begin right where the one before it ended.
        begin = end + draw(st.integers(0, 3))
        end = begin + draw(st.integers(1, 50))
        transactions.append((begin, end, draw(st.integers(0, 5))))
    return transactions


def run(stream: list[Transaction], start: tuple[int, int], stop_after: int) -> tuple[list[tuple[int, int]], Progress]:
    """Published changes as (commit LSN, number), and the progress after ``stop_after`` messages."""
    progress = Progress(*start)
    published: list[tuple[int, int]] = []
    for begin, end, changes in stream:
        for message in range(changes + 2):
            if stop_after == 0:
                return published, progress
            stop_after -= 1
            if message == 0:
                progress.begin(begin)
            elif message <= changes:
                if progress.next_change():
                    published.append((begin, message))
            else:
                progress.commit(end)
    return published, progress


@given(streams(), st.lists(st.integers(0, 45), max_size=5))
def test_invariant_11_each_change_once_and_in_order_wherever_the_stream_is_cut(
    stream: list[Transaction], cuts: list[int]
) -> None:
    position = (50, 0)
    published: list[tuple[int, int]] = []
    for cut in [*cuts, 1_000]:
        piece, progress = run(stream, position, cut)
        published += piece
        assert progress.position >= position
        position = progress.position
        # What may be forgotten is never behind a change that is not published.
        assert all(begin >= progress.complete_lsn for begin, _, n in stream if n and (begin, n) not in published)
    assert published == [(begin, number) for begin, _, changes in stream for number in range(1, changes + 1)]


def test_an_idle_stream_moves_between_transactions_only() -> None:
    progress = Progress(100, 0)
    assert progress.idle(200)
    assert (progress.position, progress.complete_lsn) == ((200, 0), 200)
    assert not progress.idle(200)
    assert not progress.idle(150)
    progress.begin(300)
    progress.next_change()
    assert not progress.idle(400)
    assert progress.position == (300, 1)


def test_a_stream_that_breaks_its_own_order_is_an_error() -> None:
    progress = Progress(100, 0)
    with pytest.raises(ValueError, match="has not begun"):
        progress.commit(200)
    progress.begin(300)
    with pytest.raises(ValueError, match="inside another"):
        progress.begin(400)
