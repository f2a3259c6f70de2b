"""All contracts as one AsyncAPI 3 document, with each topic's address and settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from topics.contract import KINDS, RecordKind, Schema, part_schema
from topics.declarations import TopicDeclaration

VERSION: Final = "3.0.0"
KAFKA_BINDING: Final = "0.5.0"
_SCHEMAS: Final = "#/components/schemas/{name}"


def asyncapi(declared: Sequence[tuple[str, TopicDeclaration]], *, version: str) -> dict[str, Any]:
    """The document. ``declared``: topics by their names without prefix, each with its declaration."""
    kinds = [kind for topic, _ in declared for kind in KINDS[topic]]
    parts = [part for kind in kinds for part in (kind.key, kind.headers, kind.value) if not isinstance(part, str)]
    _, schemas = msgspec.json.schema_components(parts, ref_template=_SCHEMAS)
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Outrider's topics",
            "version": version,
            "description": "What is handed out for delivery, and every attempt, for readers at read_committed. Headers, fields,"
            " words of an enum and kinds of records may be added: readers take what they do not know.",
        },
        "defaultContentType": "application/json",
        "channels": {topic: _channel(topic, declaration) for topic, declaration in declared},
        "operations": {
            f"publish.{topic}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{topic}"},
                "summary": declaration.purpose,
            }
            for topic, declaration in declared
        },
        "components": {"messages": {kind.name: _message(kind, schemas) for kind in kinds}, "schemas": schemas},
    }


def _channel(topic: str, declaration: TopicDeclaration) -> dict[str, Any]:
    return {
        "address": declaration.name,
        "description": declaration.purpose,
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"} for kind in KINDS[topic]},
        "bindings": {
            "kafka": {
                "topic": declaration.name,
                "partitions": declaration.partitions,
                "replicas": declaration.replication_factor,
                "topicConfiguration": _configuration(declaration.config),
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _configuration(config: dict[str, str]) -> dict[str, Any]:
    """The settings that the binding knows, in its types."""
    known: dict[str, Any] = {
        name: int(config[name]) for name in ("retention.ms", "max.message.bytes") if name in config
    }
    if "cleanup.policy" in config:
        known["cleanup.policy"] = config["cleanup.policy"].split(",")
    return known


def _message(kind: RecordKind, schemas: Mapping[str, Schema]) -> dict[str, Any]:
    def schema(part: Any, *, may_be_null: bool = False) -> Schema:
        return part_schema(part, may_be_null=may_be_null, ref_template=_SCHEMAS)

    key = schema(kind.key, may_be_null="key" in kind.may_be_null)
    if "$ref" in key:
        # In place: AsyncAPI's own schema of this binding wants exactly one of a reference and a schema, and takes every
        # reference for a schema too.
        key = schemas[key["$ref"].rsplit("/", 1)[1]]
    return {
        "name": kind.name,
        "title": kind.name,
        "summary": kind.summary,
        "contentType": "application/octet-stream" if kind.value == "bytes" else "application/json",
        "headers": schema(kind.headers),
        "payload": schema(kind.value, may_be_null="value" in kind.may_be_null),
        "bindings": {"kafka": {"key": key, "bindingVersion": KAFKA_BINDING}},
    }
