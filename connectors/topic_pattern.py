"""A topic from the text of a column: a pattern, a replacement, and the topics that may come out. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final

TEXT_CHARACTERS_MAX: Final = 249
"""A topic's name has no more, and a pattern of somebody's own is not tried on longer texts."""

_GROUP = re.compile(r"\$(?:(\d)|\{(\w+)\})|\\(.)|([^$\\]+)", re.DOTALL)
_TEXTS_REMEMBERED: Final = 1_024


class TopicPatternError(ValueError):
    """The pattern or its replacement cannot be used."""


class TopicPattern:
    """See :class:`connectors.route.TopicByColumn`. Raises TopicPatternError."""

    def __init__(self, pattern: str, replacement: str, topics: Collection[str]) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise TopicPatternError(f"topic pattern {pattern!r} is no regular expression: {error}") from None
        self._parts = list(_parts(self._pattern, replacement))
        self._topics = frozenset(topics)
        # Few different texts make up all rows.
        self.topic_of = lru_cache(_TEXTS_REMEMBERED)(self._topic_of)
        """The topic of a text, or None where it is none of those that may come out."""

    def _topic_of(self, text: str) -> str | None:
        if len(text) > TEXT_CHARACTERS_MAX:
            return None
        found = self._pattern.fullmatch(text)
        topic = text
        if found is not None:
            topic = "".join(part if isinstance(part, str) else found[part[0]] or "" for part in self._parts)
        return topic if topic in self._topics else None


def _parts(pattern: re.Pattern[str], replacement: str) -> Iterator[str | tuple[int | str]]:
    """Literal texts, and groups as tuples. ``\\$`` is a dollar sign."""
    position = 0
    while position < len(replacement):
        found = _GROUP.match(replacement, position)
        if found is None:
            raise TopicPatternError(f"topic replacement {replacement!r}: a group is written $1 or ${{name}}")
        number, name, escaped, literal = found.groups()
        position = found.end()
        if number is not None and int(number) > pattern.groups:
            raise TopicPatternError(f"topic replacement {replacement!r}: the pattern has no group {number}")
        if name is not None and name not in pattern.groupindex:
            raise TopicPatternError(f"topic replacement {replacement!r}: the pattern has no group {name!r}")
        if number is not None:
            yield (int(number),)
        elif name is not None:
            yield (name,)
        else:
            yield escaped or literal
