"""What waits for one destination, in the order of its turns: first tries ahead of retries, and no retry for ever last.

Of those that are there, FIRSTS_BEFORE_RETRY first tries go, then one retry, and so on; either goes alone where the other
has nothing. No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

FIRSTS_BEFORE_RETRY = 3


class Line(Generic[Item]):
    """A queue with two classes of items; ``is_retry`` tells them apart. All operations but ``remove`` are O(1)."""

    __slots__ = ("_firsts", "_firsts_gone", "_is_retry", "_retries")

    def __init__(self, is_retry: Callable[[Item], bool]) -> None:
        self._is_retry = is_retry
        self._firsts: deque[Item] = deque()
        self._retries: deque[Item] = deque()
        # First tries that have gone since the last retry, while one waited.
        self._firsts_gone = 0

    def __len__(self) -> int:
        return len(self._firsts) + len(self._retries)

    def append(self, item: Item) -> None:
        """Behind those of its class."""
        self._of(item).append(item)

    def put_back(self, item: Item) -> None:
        """In front of those of its class."""
        self._of(item).appendleft(item)

    def pop(self) -> Item:
        """The next one. Raises IndexError where nothing waits."""
        if not self._retries or (self._firsts and self._firsts_gone < FIRSTS_BEFORE_RETRY):
            item = self._firsts.popleft()
            self._firsts_gone = self._firsts_gone + 1 if self._retries else 0
            return item
        self._firsts_gone = 0
        return self._retries.popleft()

    def pop_last(self) -> Item:
        """The one whose turn would come last. Raises IndexError where nothing waits."""
        # Among n retries there is place for FIRSTS_BEFORE_RETRY first tries before each.
        if len(self._firsts) > FIRSTS_BEFORE_RETRY * len(self._retries) - self._firsts_gone:
            return self._firsts.pop()
        return self._retries.pop()

    def remove(self, is_lost: Callable[[Item], bool]) -> list[Item]:
        """Take out those for which ``is_lost`` holds."""
        lost = [item for item in self if is_lost(item)]
        if lost:
            self._firsts = deque(item for item in self._firsts if not is_lost(item))
            self._retries = deque(item for item in self._retries if not is_lost(item))
        return lost

    def __iter__(self) -> Iterator[Item]:
        yield from self._firsts
        yield from self._retries

    def _of(self, item: Item) -> deque[Item]:
        return self._retries if self._is_retry(item) else self._firsts
