"""The judge of the connector's proofs: a judge that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from tests.support.outbox_judge import compare

COMMITTED = {"a": ["1", "2", "3"], "b": ["4", "5"]}


def test_the_same_rows_in_the_same_order_have_no_fault() -> None:
    assert compare("dispatch", COMMITTED, {"b": ["4", "5"], "a": ["1", "2", "3"]}) == []


@pytest.mark.parametrize(
    ("published", "fault"),
    [
        ({"a": ["1", "2"], "b": ["4", "5"]}, "dispatch: missing: 1, such as 3"),
        ({"a": ["1", "2", "3"]}, "dispatch: missing: 2, such as 4, 5"),
        ({"a": ["1", "2", "3", "2"], "b": ["4", "5"]}, "dispatch: repeated: 1, such as 2"),
        ({"a": ["1", "2", "3"], "b": ["4", "5", "6"]}, "dispatch: not committed: 1, such as 6"),
        ({"a": ["2", "1", "3"], "b": ["4", "5"]}, "dispatch: the order of 'a' is not kept"),
        ({"a": ["1", "2", "3", "5"], "b": ["4"]}, "dispatch: under the wrong key 'a': 1, such as 5"),
    ],
)
def test_each_kind_of_fault_is_named(published: dict[str, list[str]], fault: str) -> None:
    assert fault in compare("dispatch", COMMITTED, published)


def test_a_lost_row_alone_is_no_disorder() -> None:
    faults = compare("dispatch", COMMITTED, {"a": ["1", "3"], "b": ["4", "5"]})
    assert faults == ["dispatch: missing: 1, such as 2"]
