"""CloudEvents as events to admit: one identity in every mode, and no byte changed."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.admission.cloudevents import Routing, event_identity, from_binary, from_structured, is_json
from pipeline.admission.problems import Kind, Refusal

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
NAMES = st.from_regex(r"\A[a-z0-9]{1,20}\Z").filter(
    lambda name: name not in ("id", "source", "type", "specversion", "time", "data", "datacontenttype", "dataschema")
)


def binary(attributes: dict[str, str], body: bytes, content_type: str = "application/json") -> object:
    headers = [(f"ce-{name}", quote(value, safe="")) for name, value in attributes.items()]
    return from_binary(headers, content_type, body, Routing())


@given(st.tuples(PRINTABLE, PRINTABLE), st.tuples(PRINTABLE, PRINTABLE))
def test_two_pairs_have_one_identity_only_if_they_are_the_same(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert (event_identity(*first) == event_identity(*second)) == (first == second)


@pytest.mark.parametrize(("first", "second"), [(("a:b", "c"), ("a", "b:c")), (("ab", "c"), ("a", "bc"))])
def test_no_separator_makes_two_pairs_alike(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert event_identity(*first) != event_identity(*second)


@given(PRINTABLE, PRINTABLE, PRINTABLE, st.dictionaries(NAMES, PRINTABLE, max_size=5), st.integers() | st.text())
def test_both_modes_make_the_same_event(
    event_id: str, source: str, event_type: str, extensions: dict[str, str], data: object
) -> None:
    attributes = {"specversion": "1.0", "id": event_id, "source": source, "type": event_type, **extensions}
    text = json.dumps(data)
    document = json.dumps(attributes)[:-1] + f', "data": {text}}}'
    assert from_structured(document.encode(), Routing()) == binary(attributes, text.encode())


@given(PRINTABLE)
def test_headers_are_printable_ascii_whatever_the_value(value: str) -> None:
    event = from_structured(
        json.dumps({"specversion": "1.0", "id": "i", "source": "s", "type": "t", "x": value}).encode(), Routing()
    )
    assert event.headers["ce-x"].isascii()
    assert event.headers["ce-x"].isprintable()
    assert " " not in event.headers["ce-x"]


def test_a_header_may_come_escaped_or_not_and_is_the_same() -> None:
    attributes = {"specversion": "1.0", "id": "a/b", "source": "/s", "type": "t"}
    plain = from_binary([(f"CE-{n.title()}", v) for n, v in attributes.items()], "text/plain", b"x", Routing())
    assert plain == binary(attributes, b"x", "text/plain")


def test_a_repeated_attribute_is_refused() -> None:
    headers = [("ce-specversion", "1.0"), ("ce-id", "1"), ("CE-ID", "2"), ("ce-source", "s"), ("ce-type", "t")]
    with pytest.raises(Refusal, match="twice") as refused:
        from_binary(headers, "", b"", Routing())
    assert refused.value.kind is Kind.MALFORMED


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("text/json; charset=utf-8", True),
        ("application/vnd.x+JSON", True),
        ("application/jsonp", False),
        ("text/plain", False),
        ("", False),
    ],
)
def test_what_counts_as_json(content_type: str, expected: bool) -> None:
    assert is_json(content_type) is expected
