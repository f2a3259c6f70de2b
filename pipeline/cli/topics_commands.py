"""``outrider topics …``: the declared topics against the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib.metadata import version
from typing import Annotated

import typer

from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import visible
from pipeline.settings import Settings, load_settings
from topics.admin import KafkaUnreachableError, TopicAdmin, TopicsError
from topics.contract import KINDS, topic_schema
from topics.contract_asyncapi import asyncapi
from topics.contract_compatibility import topic_changes
from topics.contract_released import current_contracts, released_contracts
from topics.declarations import TopicDeclaration, declare_topics
from topics.difference import Difference, Remedy, differences, divide

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


class ContractFormat(StrEnum):
    asyncapi = "asyncapi"
    json_schema = "json-schema"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The topics: what is declared, what is there, what differs.")
    group.command("list")(list_topics)
    group.command("describe")(describe)
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


def describe(
    *,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic, with prefix or without; may be repeated.")
    ] = None,
    form: Annotated[ContractFormat, typer.Option("--format", help="Form of the contracts.")] = ContractFormat.asyncapi,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare with the released contracts; exit code 1 where readers would break."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Of --check: one JSON document instead of text.")] = False,
) -> None:
    """The contracts of the topics' records, as one JSON document for programs. Needs no broker.

    As json-schema: of one topic its schema, of several an object of them by topic.
    """
    if as_json and not check:
        raise UsageError("--json belongs to --check: a contract is JSON already")
    chosen = _chosen(topic or [])
    if check:
        _check_contracts(set(chosen), as_json=as_json)
    elif form is ContractFormat.asyncapi:
        print(json.dumps(asyncapi(list(chosen.items()), version=version("outrider")), indent=2))
    else:
        schemas = {declaration.name: topic_schema(name) for name, declaration in chosen.items()}
        print(json.dumps(next(iter(schemas.values())) if len(topic or []) == 1 else schemas, indent=2))


def _chosen(topics: list[str]) -> dict[str, TopicDeclaration]:
    """Declarations by names without prefix. Raises CommandError for a topic that is not ours."""
    settings = load_settings()
    prefix = f"{settings.topic_prefix}."
    declared = {declaration.name.removeprefix(prefix): declaration for declaration in declared_topics(settings)}
    for name in topics:
        if name.removeprefix(prefix) not in declared:
            raise CommandError(f"no topic {visible(name)}: there are {', '.join(declared)}")
    wanted = {name.removeprefix(prefix) for name in topics} or KINDS.keys()
    return {name: declaration for name, declaration in declared.items() if name in wanted}


def _check_contracts(topics: set[str], *, as_json: bool) -> None:
    try:
        released = released_contracts()
    except ValueError as error:
        raise CommandError(str(error)) from None
    current = current_contracts()
    gone = released.keys() - current.keys()
    changes = [change for change in topic_changes(released, current) if change.topic in topics | gone]
    if as_json:
        print(json.dumps({"changes": [asdict(change) for change in changes]}))
    else:
        for change in changes:
            print(f"{'breaks readers: ' if change.breaks else 'added: '}{change}")
        if not changes:
            print(f"{len(topics)} contracts are as released")
    raise typer.Exit(any(change.breaks for change in changes))


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
