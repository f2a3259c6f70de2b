"""The document says what the code does: every operation, every type, every problem."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pipeline.admission.openapi import document
from pipeline.admission.operations import OPERATIONS
from pipeline.admission.problems import Kind

DOCUMENT = json.loads(json.dumps(document()))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        place: Any = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]


def test_every_operation_is_there_with_its_parameters_and_problems() -> None:
    described = {
        (method.upper(), path): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }
    assert set(described) == {(operation.method, operation.path) for operation in OPERATIONS}
    for operation in OPERATIONS:
        found = described[operation.method, operation.path]
        assert {"400", "401", "403", "429", "503", str(operation.status)} <= set(found["responses"])
        in_path = {parameter["name"] for parameter in found["parameters"] if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", operation.path))
        assert ("requestBody" in found) == bool(operation.bodies)


def test_operation_ids_and_problem_names_are_unique() -> None:
    ids = [operation.operation_id for operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    slugs = [kind.slug for kind in Kind]
    assert len(set(slugs)) == len(slugs)
    assert {400, 401, 403, 404, 409, 413, 415, 422, 429, 503} <= {kind.status for kind in Kind}
