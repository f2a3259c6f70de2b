"""Each topic's contract as JSON Schema, generated from the structs of its records. Pure.

A schema describes one record as an object of three parts, ``key``, ``headers`` and ``value``, in the form that
``record_form`` gives: JSON stands as it is, text as text, bytes as base64. A topic with several kinds of records has one
schema for each; a record fits the topic if it fits one of them.

What may be added without notice: headers, fields, words of an ``enum``, kinds of records. Readers take what they do not
know. What else changes breaks them: ``contract_changes`` finds it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from topics import contract_wire as wire
from topics.codecs import Attempt
from topics.declarations import ATTEMPTS, CONTROL, DISPATCH, POSITIONS, QUARANTINE, WAKEUPS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Form: TypeAlias = Literal["text", "bytes"]
Part: TypeAlias = type[msgspec.Struct] | Form
HeaderPairs: TypeAlias = Iterable[tuple[str, bytes | str | None]]
Schema: TypeAlias = dict[str, Any]

_FORMS: Final[dict[Form, Schema]] = {
    "text": {"type": "string", "minLength": 1, "maxLength": 1024},
    "bytes": {"type": "string", "contentEncoding": "base64"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordKind:
    """One kind of record. ``may_be_null``: parts that may be missing; a null value forgets the key in a compacted topic."""

    name: str
    summary: str
    key: Part
    headers: type[msgspec.Struct]
    value: Part
    may_be_null: frozenset[Literal["key", "value"]] = frozenset()


KINDS: Final[Mapping[str, tuple[RecordKind, ...]]] = {
    DISPATCH: (
        RecordKind(
            name="dispatch",
            summary="One handing of a delivery to the workers; key: destination_id, value: the payload as it was admitted.",
            key="text",
            headers=wire.DispatchHeaders,
            value="bytes",
        ),
    ),
    ATTEMPTS: (
        RecordKind(
            name="attempt",
            summary="One attempt that ended; key: destination_id.",
            key="text",
            headers=wire.AttemptHeaders,
            value=Attempt,
        ),
    ),
    POSITIONS: (
        RecordKind(
            name="position",
            summary="How far a slot is published.",
            key=wire.SlotKey,
            headers=wire.NoHeaders,
            value=wire.SlotPosition,
            may_be_null=frozenset({"value"}),
        ),
    ),
    CONTROL: (
        RecordKind(
            name="pause",
            summary="Whether a connector is to rest.",
            key=wire.PauseKey,
            headers=wire.NoHeaders,
            value=wire.PauseWish,
            may_be_null=frozenset({"value"}),
        ),
        RecordKind(
            name="release",
            summary="Rows to publish from quarantine, and what came of it.",
            key=wire.ReleaseKey,
            headers=wire.NoHeaders,
            value=wire.ReleaseWish,
            may_be_null=frozenset({"value"}),
        ),
        RecordKind(
            name="held",
            summary="A key whose later rows wait in quarantine.",
            key=wire.HeldKey,
            headers=wire.NoHeaders,
            value=wire.HeldReason,
            may_be_null=frozenset({"value"}),
        ),
    ),
    QUARANTINE: (
        RecordKind(
            name="refused_row",
            summary="A row that could not be published; key: that of the refused record.",
            key="bytes",
            headers=wire.RefusedRowHeaders,
            value=wire.RefusedRow,
            may_be_null=frozenset({"key"}),
        ),
        RecordKind(
            name="refused_message",
            summary="A message that a worker could not read, as whole as this topic takes it.",
            key="bytes",
            headers=wire.RefusedMessageHeaders,
            value="bytes",
            may_be_null=frozenset({"key"}),
        ),
        RecordKind(
            name="mark",
            summary="What became of earlier entries.",
            key="bytes",
            headers=wire.MarkHeaders,
            value=wire.SettledMark,
            may_be_null=frozenset({"key"}),
        ),
    ),
    WAKEUPS: (
        RecordKind(
            name="wakeup",
            summary="A call for a pass over a source; key: the source's id, and the value means nothing.",
            key="text",
            headers=wire.NoHeaders,
            value="bytes",
            may_be_null=frozenset({"value"}),
        ),
    ),
}


def topic_schema(topic: str) -> Schema:
    """The JSON Schema of one topic's records; ``topic`` without its prefix. Raises KeyError for one without a contract."""
    kinds = KINDS[topic]
    parts = [part for kind in kinds for part in (kind.key, kind.headers, kind.value) if not isinstance(part, str)]
    _, definitions = msgspec.json.schema_components(parts, ref_template="#/$defs/{name}")
    schema: Schema = msgspec.json.decode(
        msgspec.json.encode(  # as it will be read: a default is a list then, and no tuple
            {
                "$schema": DIALECT,
                "$id": f"urn:outrider:topic:{topic}",
                "title": topic,
                "anyOf": [{"$ref": f"#/$defs/{kind.name}"} for kind in kinds],
                "$defs": {**{kind.name: _record_schema(kind) for kind in kinds}, **definitions},
            }
        )
    )
    return schema


def part_schema(part: Part, *, may_be_null: bool, ref_template: str = "#/$defs/{name}") -> Schema:
    """A key's, value's or headers' schema, which may refer to its struct's definition."""
    if isinstance(part, str):
        schema = dict(_FORMS[part])
        return {**schema, "type": [schema["type"], "null"]} if may_be_null else schema
    (schema,), _ = msgspec.json.schema_components((part,), ref_template=ref_template)
    return {"anyOf": [schema, {"type": "null"}]} if may_be_null else schema


def _record_schema(kind: RecordKind) -> Schema:
    return {
        "title": kind.name,
        "description": kind.summary,
        "type": "object",
        "properties": {
            "key": part_schema(kind.key, may_be_null="key" in kind.may_be_null),
            "headers": part_schema(kind.headers, may_be_null=False),
            "value": part_schema(kind.value, may_be_null="value" in kind.may_be_null),
        },
        "required": ["key", "headers", "value"],
    }


def record_forms(
    topic: str, key: bytes | str | None, value: bytes | str | None, headers: HeaderPairs | None
) -> dict[str, Schema]:
    """A record in the form that the schemas speak of, by kind: a part that is JSON for one may be bytes for another.

    A part that is no JSON where a kind wants it stands there as its bytes, which do not fit. Of a repeated header the last
    counts. Raises KeyError for a topic without a contract.
    """
    texts = {name: None if content is None else _text(content) for name, content in headers or ()}
    return {
        kind.name: {"key": _form(kind.key, key), "headers": texts, "value": _form(kind.value, value)}
        for kind in KINDS[topic]
    }


def _form(part: Part, content: bytes | str | None) -> Any:
    if content is None:
        return None
    raw = content.encode() if isinstance(content, str) else content
    if part == "text":
        return _text(raw)
    if part != "bytes":
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return base64.b64encode(raw).decode()


def _text(content: bytes | str) -> str:
    return content.decode(errors="replace") if isinstance(content, bytes) else content
