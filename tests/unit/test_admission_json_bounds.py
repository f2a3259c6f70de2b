"""Depth is counted right, without recursion, and in time linear in the text."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.admission.json_bounds import depth

VALUES = st.recursive(
    st.none() | st.text(st.sampled_from('[]{}"\\a')) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('[{"\\')), inner, max_size=3),
    max_leaves=15,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES)
@example("[")
def test_depth_is_that_of_the_value(value: object) -> None:
    assert depth(json.dumps(value).encode()) == depth_of(value)


@given(st.binary(max_size=200))
def test_any_bytes_have_a_depth(text: bytes) -> None:
    assert 0 <= depth(text) <= len(text)


def test_long_texts_made_to_be_slow_are_not() -> None:
    """Each of these takes hours where an unclosed string is looked for again at every quote."""
    for text in (b'"\\' * 2_000_000, b'\\"' * 2_000_000, b'"' * 4_000_001, b'["' * 2_000_000):
        assert depth(text) >= 0
    assert depth(b"[" * 4_000_000) == 4_000_000
