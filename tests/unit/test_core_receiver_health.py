"""What results say of a receiver: every outcome has its line."""

from __future__ import annotations

import re

import pytest

from pipeline.core import receiver_health
from pipeline.core.classify import Outcome
from pipeline.core.receiver_health import sign_of, slows


def documented() -> dict[tuple[Outcome, int | None], tuple[str | None, bool]]:
    """The table of the module's description."""
    table = {}
    for line in (receiver_health.__doc__ or "").splitlines():
        match = re.fullmatch(r"(.+?)\s+(works|fails|-)\s+(yes|no)", line)
        if match:
            for name in match[1].split(", "):
                outcome, _, which = name.partition(" ")
                status = {"": None, "(429)": 429, "(other)": 503}[which]
                table[Outcome(outcome), status] = (None if match[2] == "-" else match[2], match[3] == "yes")
    return table


@pytest.mark.parametrize(("case", "expected"), documented().items(), ids=str)
def test_the_program_does_what_the_table_says(case, expected):
    outcome, status = case
    assert (sign_of(outcome, status), slows(outcome)) == expected


def test_every_outcome_is_in_the_table():
    assert {outcome for outcome, _ in documented()} == set(Outcome)
