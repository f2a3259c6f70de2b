"""``outrider topics …``: the declared topics against the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.cli.errors import CommandError
from pipeline.settings import Settings, load_settings
from topics.admin import KafkaUnreachableError, TopicAdmin, TopicsError
from topics.declarations import TopicDeclaration, declare_topics
from topics.difference import Difference, Remedy, differences, divide

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The topics: what is declared, what is there, what differs.")
    group.command("list")(list_topics)
    group.command("diff")(diff)
    group.command("apply")(apply)
    app.add_typer(group, name="topics")


def declared_topics(settings: Settings) -> tuple[TopicDeclaration, ...]:
    """The declarations under these settings. Raises CommandError where they contradict each other."""
    try:
        return declare_topics(
            prefix=settings.topic_prefix,
            dispatch_partitions=settings.dispatch_partitions,
            attempts_partitions=settings.attempts_partitions,
            replication_factor=settings.topic_replication_factor,
            min_insync_replicas=settings.topic_min_insync_replicas,
        )
    except ValueError as error:
        raise CommandError(
            f"{error}: check OUTRIDER_TOPIC_REPLICATION_FACTOR and OUTRIDER_TOPIC_MIN_INSYNC_REPLICAS"
        ) from None


def list_topics(as_json: AsJson = False) -> None:
    """Every declared topic with its settings and the contract of its records. Needs no broker."""
    declared = declared_topics(load_settings())
    if as_json:
        print(json.dumps([asdict(declaration) for declaration in declared]))
        return
    for declaration in declared:
        print(f"{declaration.name}: {declaration.purpose}")
        print(f"  partitions {declaration.partitions}, replication factor {declaration.replication_factor}")
        for name, value in declaration.config.items():
            print(f"  {name} = {value}")
        print(f"  key: {declaration.contract.key}")
        print(f"  value: {declaration.contract.value}")
        for name, meaning in declaration.contract.headers.items():
            print(f"  header {name}: {meaning}")


def diff(as_json: AsJson = False) -> None:
    """What differs between declared and real topics; exit code 1 where something does."""
    settings = load_settings()
    declared = declared_topics(settings)
    with _kafka_errors():
        found = _differences(TopicAdmin(settings.kafka), declared)
    if as_json:
        print(json.dumps({"differences": [asdict(difference) for difference in found]}))
    else:
        _show(found)
        if not found:
            print(f"{len(declared)} topics are as declared")
    raise typer.Exit(any(difference.remedy is not Remedy.keep for difference in found))


def apply(
    allow_more_partitions: Annotated[
        bool, typer.Option("--allow-more-partitions", help="Add partitions, which moves keys between partitions.")
    ] = False,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Make changes that let Kafka delete records.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create what is missing and set what is safe to set; what is refused is explained, with exit code 1."""
    settings = load_settings()
    declared = declared_topics(settings)
    with _kafka_errors():
        admin = TopicAdmin(settings.kafka)
        applied, refused = divide(
            _differences(admin, declared),
            allow_more_partitions=allow_more_partitions,
            allow_data_loss=allow_data_loss,
        )
        admin.apply(declared, applied)
    if as_json:
        print(json.dumps({"applied": [asdict(d) for d in applied], "refused": [asdict(d) for d in refused]}))
    else:
        for difference in applied:
            if difference.actual is None:
                print(f"created {difference.topic}: {difference.declared}")
            else:
                print(f"set {difference.topic}: {difference.aspect} {difference.actual} -> {difference.declared}")
        _show(refused, prefix="refused ")
        if not applied and not refused:
            print("nothing to apply")
    raise typer.Exit(bool(refused))


def _differences(admin: TopicAdmin, declared: tuple[TopicDeclaration, ...]) -> tuple[Difference, ...]:
    return differences(declared, admin.describe(declaration.name for declaration in declared))


def _show(found: Iterable[Difference], prefix: str = "") -> None:
    for difference in found:
        if difference.actual is None:
            print(f"{prefix}{difference.topic}: {difference.explanation} ({difference.declared})")
        else:
            change = f"{difference.actual}, declared {difference.declared or 'nothing'}"
            print(f"{prefix}{difference.topic}: {difference.aspect} is {change}; {difference.explanation}")


@contextmanager
def _kafka_errors() -> Iterator[None]:
    try:
        yield
    except KafkaUnreachableError as error:
        raise CommandError(f"{error}; check OUTRIDER_KAFKA_BOOTSTRAP_SERVERS, and that the broker runs") from None
    except TopicsError as error:
        raise CommandError(str(error)) from None
