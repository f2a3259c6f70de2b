"""The OpenAPI 3.1 document, made from the table of operations and the types of the wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import msgspec

from pipeline.admission.operations import OPERATIONS, Operation, Parameter
from pipeline.admission.problems import CONTENT_TYPE, Kind, Problem
from pipeline.admission.wire import CloudEvent

SCHEMES = "#/components/schemas/{name}"
# What every operation may answer.
COMMON = (
    Kind.MALFORMED,
    Kind.UNAUTHENTICATED,
    Kind.FORBIDDEN,
    Kind.TOO_MANY,
    Kind.DEFECT,
    Kind.UNAVAILABLE,
)
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}


def document() -> dict[str, Any]:
    """As JSON-like data."""
    types = [body for operation in OPERATIONS for body in operation.bodies.values() if not isinstance(body, Mapping)]
    types += [operation.answer for operation in OPERATIONS]
    types += [Problem, CloudEvent]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMES)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Outrider",
            "version": metadata.version("outrider"),
            "description": "Admission of events, and where their deliveries stand. Every error is a problem detail.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of outrider key create."}
            },
            "responses": {kind.slug: _problem(kind) for kind in Kind},
        },
        "security": [{"key": []}],
    }


def _operation(operation: Operation, schema_of: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    answer = {
        "description": operation.summary,
        "content": {"application/json": {"schema": schema_of[id(operation.answer)]}},
    }
    described: dict[str, Any] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "description": f"{operation.description} Needs the scope {operation.scope}.".strip(),
        "parameters": [_parameter(parameter) for parameter in operation.parameters],
        "responses": {str(operation.status): answer, **_problems(operation)},
    }
    if operation.bodies:
        described["requestBody"] = {
            "required": True,
            "content": {
                content_type: {"schema": dict(body) if isinstance(body, Mapping) else schema_of[id(body)]}
                for content_type, body in operation.bodies.items()
            },
        }
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _problems(operation: Operation) -> dict[str, Any]:
    by_status: dict[str, list[Kind]] = {}
    for kind in (*COMMON, *operation.problems):
        by_status.setdefault(str(kind.status), []).append(kind)
    return {
        status: {"$ref": f"#/components/responses/{kinds[0].slug}"} if len(kinds) == 1 else _problem(*kinds)
        for status, kinds in sorted(by_status.items())
    }


def _problem(*kinds: Kind) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": "; ".join(kind.title for kind in kinds),
        "content": {CONTENT_TYPE: {"schema": {"$ref": SCHEMES.format(name="Problem")}}},
    }
    if kinds[0] in (Kind.TOO_MANY, Kind.UNAVAILABLE):
        described["headers"] = _RETRY_AFTER
    return described
