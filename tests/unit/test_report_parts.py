"""The pure parts of the reconciliation report: its verdict, a receiver's list, the plots."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.ids import ping_identity
from pipeline.ledger.queries import query
from pipeline.report.compare import KINDS, judge, kind_of
from pipeline.report.counting import FINDERS
from pipeline.report.receiver_list import ReceiverListError, read_receiver_list
from pipeline.report.svg import BARS_MAX, Bar, stacked_bars


def test_what_is_on_its_way_is_no_difference() -> None:
    verdict = judge({"not_published_yet": 3, "not_audited_yet": 1, "receiver_ahead": 1})
    assert verdict.is_exact
    assert sum(verdict.in_flight.values()) == 5


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.is_difference])
def test_every_other_finding_is_one(kind: str) -> None:
    verdict = judge({kind: 1, "not_published_yet": 1})
    assert verdict.differences == {kind: 1}
    assert not verdict.is_exact


def test_a_finding_of_an_unknown_kind_is_not_passed_over() -> None:
    with pytest.raises(KeyError, match="something_new"):
        judge({"something_new": 1})


def test_the_statements_find_only_kinds_that_are_known() -> None:
    text = "".join(query("report", name) for name in (*FINDERS, "find_at_receiver"))
    told = {kind.name for kind in KINDS if f"'{kind.name}'" in text}
    assert told == {kind.name for kind in KINDS}
    assert kind_of("not_in_topic").mend is not None


@pytest.mark.parametrize(
    ("line", "delivery_id"),
    [
        ("dlv_1", "dlv_1"),
        ("  dlv_1\t\n", "dlv_1"),
        ("\ufeffdlv_1", "dlv_1"),
        ('{"delivery_id": "dlv_1", "id": "other"}', "dlv_1"),
        ('{"webhook-id": "dlv_1", "at": 5}', "dlv_1"),
    ],
)
def test_ids_of_a_receiver(line: str, delivery_id: str) -> None:
    assert list(read_receiver_list([line, "", "\n"])) == [delivery_id]


@pytest.mark.parametrize("form", ["{}\n", '{{"webhook-id": "{}"}}'])
def test_pings_are_no_deliveries_that_the_ledger_should_know(form: str) -> None:
    theirs = [form.format(ping_identity(UUID(int=7))), "dlv_1", "ping_1"]
    assert list(read_receiver_list(theirs)) == ["dlv_1", "ping_1"]


@pytest.mark.parametrize(
    "line", ["{", '{"at": 5}', '{"id": 5}', '{"id": ""}', "x" * 1025, "a\0b", "\ud800", "{" * 100_000]
)
def test_lines_that_name_no_delivery_are_told_by_number(line: str) -> None:
    with pytest.raises(ReceiverListError, match="line 2"):
        list(read_receiver_list(["dlv_1", line]))


@given(st.lists(st.text(max_size=200), max_size=5))
def test_any_text_is_ids_or_one_error(lines: list[str]) -> None:
    with suppress(ReceiverListError):
        assert all(read_receiver_list(lines))


COLOURS = {"good": "#0f0", "bad": "#f00"}


@given(st.lists(st.tuples(st.text(max_size=20), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=40))
def test_plots_are_well_formed_whatever_the_labels(bars: list[tuple[str, int, int]]) -> None:
    text = stacked_bars([Bar(label, {"good": good, "bad": bad}) for label, good, bad in bars], COLOURS)
    if all(c.isprintable() for label, *_ in bars for c in label):
        parts = ElementTree.fromstring(text).iter("rect")
        drawn = sum((good > 0) + (bad > 0) for _, good, bad in bars)
        assert len(list(parts)) == drawn + len(COLOURS)


def test_many_bars_are_drawn_summed() -> None:
    text = stacked_bars([Bar(str(n), {"good": 1}) for n in range(10 * BARS_MAX)], COLOURS)
    assert text.count("<title>") == BARS_MAX
    assert "10 good" in text
