"""Declared topics against real ones: every difference is seen, and none that harms is applied unasked."""

from __future__ import annotations

import dataclasses

import pytest

from topics.declarations import TopicDeclaration, declare_topics
from topics.difference import ActualTopic, Difference, Remedy, differences, divide


def declared(**changes: int) -> tuple[TopicDeclaration, ...]:
    values = {"dispatch_partitions": 6, "attempts_partitions": 3, "replication_factor": 3, "min_insync_replicas": 2}
    return declare_topics(prefix="test", **values | changes)


def actual(declarations: tuple[TopicDeclaration, ...]) -> dict[str, ActualTopic]:
    return {
        topic.name: ActualTopic(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            {**topic.config, "compression.type": "producer"},
            frozenset(topic.config),
        )
        for topic in declarations
    }


def dispatch_difference(**changes: object) -> list[Difference]:
    topics = actual(declared())
    config = changes.pop("config", None)
    topic = dataclasses.replace(topics["test.dispatch"], **changes)  # type: ignore[arg-type]  # a test's table
    if isinstance(config, dict):
        topic = dataclasses.replace(topic, config={**topic.config, **config})
    return list(differences(declared(), {**topics, "test.dispatch": topic}))


def test_the_topics_are_declared_under_the_prefix() -> None:
    assert {topic.name for topic in declared()} == {
        "test.dispatch",
        "test.attempts",
        "test.connector.positions",
        "test.connector.control",
        "test.quarantine",
        "test.wakeups",
    }


def test_what_a_connector_must_not_forget_is_compacted_and_nothing_else_is() -> None:
    policies = {topic.name: topic.config["cleanup.policy"] for topic in declared()}
    assert [name for name, policy in policies.items() if policy == "compact"] == [
        "test.connector.positions",
        "test.connector.control",
    ]


def test_more_copies_must_not_be_needed_than_there_are() -> None:
    with pytest.raises(ValueError, match="2 in-sync replicas cannot be reached with a replication factor of 1"):
        declared(replication_factor=1)


def test_topics_as_declared_have_no_difference() -> None:
    assert differences(declared(), actual(declared())) == ()


def test_a_missing_topic_is_created() -> None:
    topics = actual(declared())
    del topics["test.attempts"]
    (difference,) = differences(declared(), topics)
    assert (difference.topic, difference.actual, difference.remedy) == ("test.attempts", None, Remedy.apply)


@pytest.mark.parametrize(
    ("changes", "aspect", "remedy"),
    [
        ({"partitions": 4}, "partitions", Remedy.allow_more_partitions),
        ({"partitions": 8}, "partitions", Remedy.by_hand),
        ({"replication_factor": 1}, "replication factor", Remedy.by_hand),
        ({"config": {"retention.ms": "3600000"}}, "retention.ms", Remedy.apply),
        ({"config": {"retention.ms": "99999999999"}}, "retention.ms", Remedy.allow_data_loss),
        ({"config": {"retention.ms": "-1"}}, "retention.ms", Remedy.allow_data_loss),
        ({"config": {"cleanup.policy": "compact"}}, "cleanup.policy", Remedy.allow_data_loss),
        ({"config": {"min.insync.replicas": "1"}}, "min.insync.replicas", Remedy.apply),
        ({"config": {"max.message.bytes": "1000"}}, "max.message.bytes", Remedy.apply),
    ],
)
def test_each_difference_names_what_it_takes(changes: dict[str, object], aspect: str, remedy: Remedy) -> None:
    (difference,) = dispatch_difference(**changes)
    assert (difference.topic, difference.aspect, difference.remedy) == ("test.dispatch", aspect, remedy)
    assert difference.explanation


def test_settings_that_somebody_made_are_shown_and_kept() -> None:
    (difference,) = dispatch_difference(own_settings=frozenset({"compression.type"}))
    assert (difference.aspect, difference.remedy) == ("compression.type", Remedy.keep)
    assert divide([difference], allow_more_partitions=True, allow_data_loss=True) == ([], [])


@pytest.mark.parametrize("more_partitions", [False, True])
@pytest.mark.parametrize("data_loss", [False, True])
def test_permissions_let_through_only_what_they_name(more_partitions: bool, data_loss: bool) -> None:
    found = [
        Difference("t", remedy.value, "1", "2", remedy, "why")
        for remedy in (Remedy.apply, Remedy.allow_more_partitions, Remedy.allow_data_loss, Remedy.by_hand)
    ]
    accepted, refused = divide(found, allow_more_partitions=more_partitions, allow_data_loss=data_loss)
    allowed = {Remedy.apply}
    allowed |= {Remedy.allow_more_partitions} if more_partitions else set()
    allowed |= {Remedy.allow_data_loss} if data_loss else set()
    assert {difference.remedy for difference in accepted} == allowed
    assert sorted(accepted + refused, key=found.index) == found
