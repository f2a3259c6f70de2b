"""What differs between declared and real topics, and what it would take to change it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from topics.declarations import TopicDeclaration


@dataclass(frozen=True, slots=True)
class ActualTopic:
    """A topic as the cluster describes it.

    ``config`` holds effective values, defaults included; ``own_settings`` names those set on the topic itself.
    """

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    own_settings: frozenset[str] = frozenset()


class Remedy(StrEnum):
    """What applying a difference takes."""

    apply = "apply"
    """Safe: done by apply."""
    allow_more_partitions = "allow-more-partitions"
    allow_data_loss = "allow-data-loss"
    by_hand = "by-hand"
    """Cannot be done here; the explanation says how it is done."""
    keep = "keep"
    """Somebody's own setting, which the declarations do not mention: shown, and left alone."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing about one topic. ``actual`` is None where the topic does not exist."""

    topic: str
    aspect: str
    declared: str
    actual: str | None
    remedy: Remedy
    explanation: str


def differences(declared: Iterable[TopicDeclaration], actual: Mapping[str, ActualTopic]) -> tuple[Difference, ...]:
    """Every difference, in the order of the declarations. Topics without a declaration are not looked at."""
    found: list[Difference] = []
    for declaration in declared:
        topic = actual.get(declaration.name)
        if topic is None:
            found.append(
                Difference(
                    declaration.name,
                    "topic",
                    f"{declaration.partitions} partitions, replication factor {declaration.replication_factor}",
                    None,
                    Remedy.apply,
                    "is missing and will be created",
                )
            )
            continue
        found += _partitions(declaration, topic)
        found += _replication(declaration, topic)
        found += _settings(declaration, topic)
    return tuple(found)


def _partitions(declaration: TopicDeclaration, topic: ActualTopic) -> list[Difference]:
    if declaration.partitions == topic.partitions:
        return []
    if declaration.partitions > topic.partitions:
        remedy = Remedy.allow_more_partitions
        explanation = (
            "more partitions move keys: a destination's next messages may land in another partition than those"
            " that still wait, and overtake them. Let the consumers finish first, then repeat with"
            " --allow-more-partitions"
        )
    else:
        remedy = Remedy.by_hand
        explanation = (
            "Kafka cannot take partitions away: declare as many as there are, or stop the pipeline, delete the"
            " topic and apply again (what it holds is lost; the reconciler dispatches unsettled deliveries again)"
        )
    return [
        Difference(topic.name, "partitions", str(declaration.partitions), str(topic.partitions), remedy, explanation)
    ]


def _replication(declaration: TopicDeclaration, topic: ActualTopic) -> list[Difference]:
    if declaration.replication_factor == topic.replication_factor:
        return []
    return [
        Difference(
            topic.name,
            "replication factor",
            str(declaration.replication_factor),
            str(topic.replication_factor),
            Remedy.by_hand,
            "needs a reassignment of replicas to brokers: use kafka-reassign-partitions.sh, then apply again",
        )
    ]


def _settings(declaration: TopicDeclaration, topic: ActualTopic) -> list[Difference]:
    found: list[Difference] = []
    for name, value in declaration.config.items():
        current = topic.config.get(name, "")
        if current == value:
            continue
        remedy, explanation = Remedy.apply, "will be set"
        if _loses_data(name, value, current):
            remedy = Remedy.allow_data_loss
            explanation = (
                "Kafka will delete records that it keeps now, and readers that have not come to them miss them."
                " Repeat with --allow-data-loss to do it"
            )
        found.append(Difference(topic.name, name, value, current, remedy, explanation))
    for name in sorted(topic.own_settings - declaration.config.keys()):
        explanation = "is set on the topic, and not declared: left as it is"
        found.append(Difference(topic.name, name, "", topic.config[name], Remedy.keep, explanation))
    return found


def _loses_data(name: str, declared: str, actual: str) -> bool:
    """Whether a setting's change lets Kafka delete records that it would keep otherwise."""
    if name == "retention.ms":
        # -1 keeps for ever.
        return declared != "-1" and (actual == "-1" or int(declared) < int(actual))
    return name == "cleanup.policy"


def divide(
    found: Iterable[Difference], *, allow_more_partitions: bool, allow_data_loss: bool
) -> tuple[list[Difference], list[Difference]]:
    """(to apply, refused) under the given permissions. What is to be kept is in neither."""
    allowed = {Remedy.apply}
    if allow_more_partitions:
        allowed.add(Remedy.allow_more_partitions)
    if allow_data_loss:
        allowed.add(Remedy.allow_data_loss)
    candidates = [difference for difference in found if difference.remedy is not Remedy.keep]
    accepted = [difference for difference in candidates if difference.remedy in allowed]
    return accepted, [difference for difference in candidates if difference.remedy not in allowed]
