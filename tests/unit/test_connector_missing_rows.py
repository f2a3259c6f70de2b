"""What of a table is compared with its topic, and when that cannot tell what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectors.errors import ConfigurationError
from connectors.kafka.topic_contents import TopicExtent
from connectors.missing_rows import CLOCK_SLACK_US, TRANSACTION_SLACK_US, scope_of
from connectors.postgres.snapshot import Since
from connectors.published_ids import PublishedIds
from connectors.router import ColumnValue, Header, Route

HOUR_US = 3_600_000_000
NOW_US = 1_000 * HOUR_US
ROUTE = Route(
    namespace="shop",
    table="outbox",
    topic="shop",
    key="owner",
    value=ColumnValue("body"),
    headers=(Header("row", "id"),),
    id="id",
    time="written",
)
EXTENT = TopicExtent(
    "shop", {0: 0, 1: 5}, {0: 7, 1: 9}, retention_ms=24 * 3_600_000, drops_by_size=False, is_compacted=False
)
KEEPS_ALL = {"starts": {0: 0, 1: 0}}


def extent(**changes: Any) -> TopicExtent:
    return replace(EXTENT, **changes)


def route(**changes: Any) -> Route:
    return replace(ROUTE, **changes)


@pytest.mark.parametrize(
    ("of", "topic", "as_of_us", "since_us", "reads"),
    [
        # A new topic holds nothing: every row is missing, and no id is needed to know it.
        (route(), extent(starts={0: 0}, ends={0: 0}), None, None, False),
        (route(id=None, time=None), extent(starts={0: 0}, ends={0: 0}, is_compacted=True), None, None, False),
        # A topic that has dropped nothing tells all by itself.
        (route(time=None), extent(**KEEPS_ALL), None, None, True),
        (route(), extent(**KEEPS_ALL), NOW_US, None, True),
        # Without an id it has to turn out to be empty.
        (route(id=None), extent(**KEEPS_ALL), None, None, True),
        # What is older than retention may have been dropped …
        (route(), EXTENT, None, NOW_US - 24 * HOUR_US + CLOCK_SLACK_US, True),
        (route(), EXTENT, NOW_US - HOUR_US, NOW_US - 24 * HOUR_US + CLOCK_SLACK_US, True),
        # … unless it was written after the last row that was published.
        (route(), EXTENT, NOW_US - 50 * HOUR_US, NOW_US - 50 * HOUR_US - TRANSACTION_SLACK_US, True),
        (route(), extent(drops_by_size=True), NOW_US - HOUR_US, NOW_US - HOUR_US - TRANSACTION_SLACK_US, True),
        # Somebody deleted records of a topic that drops none: they are missing.
        (route(), extent(retention_ms=None), None, None, True),
    ],
)
def test_rows_that_the_topic_may_have_dropped_are_left_alone(
    of: Route, topic: TopicExtent, as_of_us: int | None, since_us: int | None, reads: bool
) -> None:
    scope = scope_of(of, [topic], now_us=NOW_US, as_of_us=as_of_us)
    assert scope.since == (None if since_us is None else Since("written", since_us))
    assert scope.reads_topics is reads


@pytest.mark.parametrize(
    ("of", "topic", "because"),
    [
        (route(headers=()), extent(**KEEPS_ALL), "no record carries an id"),
        (route(id=None), EXTENT, "no record carries an id"),
        (route(), extent(**KEEPS_ALL, is_compacted=True), "compacted"),
        (route(time=None), EXTENT, "no time that tells old rows"),
        (route(), extent(drops_by_size=True), "by size"),
        (route(updates="publish"), extent(**KEEPS_ALL), "updates or deletes"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_mend(of: Route, topic: TopicExtent, because: str) -> None:
    with pytest.raises(ConfigurationError, match=because) as refused:
        scope_of(of, [topic], now_us=NOW_US, as_of_us=None)
    assert "table shop.outbox are in topic shop cannot be told" in str(refused.value)
    assert "delete the topic and create it again" in str(refused.value)


def test_a_moment_is_said_in_words_and_in_sql() -> None:
    since = Since("written", 86_400_000_000 + 1)
    assert str(since) == "2000-01-02T00:00:00.000001+00:00"
    assert since.where().as_string() == """ where "written" >= '2000-01-02T00:00:00.000001+00:00'::timestamptz"""


def test_ids_are_known_by_table_however_often_and_in_whatever_order_they_come() -> None:
    with PublishedIds() as published:
        published.add("a", [])
        assert not published.holds("a", b"7")
        published.add("a", [b"%d" % number for number in range(2_000, 0, -1)])
        published.add("a", [b"7", b"8", b"8"])
        assert all(published.holds("a", b"%d" % number) for number in range(1, 2_001))
        assert not published.holds("a", b"0")
        assert not published.holds("b", b"7")
