"""Topics from a column's text: only those that may come out, whatever the text is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.topic_pattern import TEXT_CHARACTERS_MAX, TopicPattern, TopicPatternError


@pytest.mark.parametrize(
    ("pattern", "replacement", "text", "topic"),
    [
        ("(.*)", "$1", "order", "order"),
        ("(.*)", "shop.$1", "order", "shop.order"),
        ("(?P<kind>[a-z]+)-(v\\d)", "shop.${kind}.$2", "order-v2", "shop.order.v2"),
        # Where the pattern does not match all of the text, the text is the topic.
        ("[a-z]+", "shop.words", "order2", "order2"),
        ("(a)|(b)", "x$1$2", "b", "xb"),
        (".*", "a\\$b\\\\c", "anything", "a$b\\c"),
        ("(.*)", "${1}", "order", None),
    ],
)
def test_replacements(pattern: str, replacement: str, text: str, topic: str | None) -> None:
    if topic is None:
        with pytest.raises(TopicPatternError, match="no group '1'"):
            TopicPattern(pattern, replacement, ["any"])
        return
    assert TopicPattern(pattern, replacement, [topic]).topic_of(text) == topic
    assert TopicPattern(pattern, replacement, ["another"]).topic_of(text) is None


@given(st.text(max_size=300))
def test_no_text_gives_a_topic_that_may_not_come_out(text: str) -> None:
    pattern = TopicPattern("(?P<kind>.*)", "shop.${kind}", ["shop.order"])
    assert pattern.topic_of(text) == ("shop.order" if text == "order" else None)


def test_a_text_longer_than_any_topic_is_not_even_tried() -> None:
    assert TopicPattern(".*", "shop", ["shop"]).topic_of("x" * TEXT_CHARACTERS_MAX) == "shop"
    assert TopicPattern(".*", "shop", ["shop"]).topic_of("x" * (TEXT_CHARACTERS_MAX + 1)) is None


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        ("(", "$1", "no regular expression"),
        ("(.*)", "$2", "no group 2"),
        ("(.*)", "${kind}", "no group 'kind'"),
        ("(.*)", "a$", r"a group is written \$1"),
        ("(.*)", "a\\", r"a group is written \$1"),
    ],
)
def test_patterns_that_cannot_be_used(pattern: str, replacement: str, message: str) -> None:
    with pytest.raises(TopicPatternError, match=message):
        TopicPattern(pattern, replacement, ["a"])
