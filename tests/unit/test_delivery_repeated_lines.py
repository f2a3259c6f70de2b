"""Repeating log lines are thinned out, and nothing else is."""

from __future__ import annotations

import logging

import pytest

from pipeline.delivery import repeated_lines
from pipeline.delivery.repeated_lines import OnceInAWhile


@pytest.fixture
def now(monkeypatch):
    moment = [0.0]
    monkeypatch.setattr(repeated_lines.time, "monotonic", lambda: moment[0])
    return moment


def record(message: str, *args: object, name: str = "aiokafka") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "file", 1, message, args, None)


def test_a_template_passes_once_in_a_while_and_says_how_many_it_held_back(now):
    subject = OnceInAWhile()
    assert subject.filter(record("no connection to %s", 1))
    assert not subject.filter(record("no connection to %s", 2))
    assert not subject.filter(record("no connection to %s", 3))
    now[0] = repeated_lines.INTERVAL_SECONDS
    later = record("no connection to %s", 4)
    assert subject.filter(later)
    assert later.getMessage() == "no connection to 4 (2 more like it left out)"


def test_other_templates_and_other_loggers_pass(now):
    subject = OnceInAWhile()
    assert subject.filter(record("one"))
    assert subject.filter(record("two"))
    assert subject.filter(record("one", name="aiokafka.conn"))


def test_a_percent_sign_in_a_line_that_is_counted_does_no_harm(now):
    subject = OnceInAWhile()
    for _ in range(2):
        subject.filter(record("at %s", "100%s"))
    now[0] = repeated_lines.INTERVAL_SECONDS
    later = record("at %s", "100%s")
    assert subject.filter(later)
    assert later.getMessage().startswith("at 100%s (1 more")


def test_memory_is_bounded(now):
    subject = OnceInAWhile()
    for number in range(repeated_lines.TEMPLATES_MAX * 3):
        assert subject.filter(record(f"message {number}"))
    assert len(subject._passed) <= repeated_lines.TEMPLATES_MAX
