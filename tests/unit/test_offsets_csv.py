"""The CSV of kafka-consumer-groups: both of its forms, there and back, and a line for what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.offsets_csv import read_csv, write_csv
from pipeline.offsets.places import Place

places = st.builds(Place, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1))
offsets = st.dictionaries(places, st.integers(0, 2**63 - 1), min_size=1)
# A group's name may be any text; the tool quotes it as CSV does.
groups = st.text(min_size=1).filter(lambda name: name == name.strip() and "\r" not in name and "\0" not in name)


@given(offsets)
def test_one_group_comes_back(given_offsets: dict[Place, int]) -> None:
    assert read_csv(write_csv({"any": given_offsets}), "other") == given_offsets


@given(st.dictionaries(groups, offsets, min_size=2, max_size=4))
def test_several_groups_come_back_each_for_itself(exported: dict[str, dict[Place, int]]) -> None:
    text = write_csv(exported)
    for group, of_group in exported.items():
        assert read_csv(text, group) == of_group


def test_the_forms_of_the_tool() -> None:
    assert write_csv({"g": {Place("t", 1): 5, Place("t", 0): 7}}) == "t,0,7\nt,1,5\n"
    assert write_csv({"a": {Place("t", 0): 1}, "b,c": {Place("t", 0): 2}}) == 'a,t,0,1\n"b,c",t,0,2\n'
    assert read_csv("t,0,7\r\n\r\n t , 1 , 5\r\n", "g") == {Place("t", 0): 7, Place("t", 1): 5}
    assert read_csv('"t","0","7"\n', "g") == {Place("t", 0): 7}


def test_what_kafka_consumer_groups_4_4_wrote() -> None:
    """Lines in no order, a group's name quoted where it must be, and an empty line at the end."""
    one = "facts,1,3\nfacts,0,6\n\n"
    several = 'a,facts,1,3\na,facts,0,6\n"b,c",facts,1,1\n"b,c",facts,0,2\n\n'
    assert read_csv(one, "a") == {Place("facts", 0): 6, Place("facts", 1): 3}
    assert read_csv(several, "b,c") == {Place("facts", 0): 2, Place("facts", 1): 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("t,0\n", "line 1: expected"),
        ("t,0,1\na,b,c,d,e\n", "line 2: expected"),
        ("t,0,-1\n", "line 1: offset '-1'"),
        ("t,0,9223372036854775808\n", "line 1: offset"),
        ("t,2147483648,1\n", "line 1: partition"),
        ("t,0,1.5\n", "line 1: offset"),
        ("t,0,٣\n", "line 1: offset"),
        ("TOPIC/,0,1\n", "line 1: 'TOPIC/' is no topic"),
        ("t,0,1\nt,0,2\n", "line 2: t partition 0 again"),
        ("other,t,0,1\n", "no line for group g"),
        ("", "no line for group g"),
        ('"t,0,1\n', "not CSV"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(OffsetsError, match=problem):
        read_csv(text, "g")
