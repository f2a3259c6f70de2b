"""Whether records that tests find in the topics are as the contracts say."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs

from topics.contract import KINDS, HeaderPairs, record_forms, topic_schema


def misfits(topic: str, key: bytes | None, value: bytes | None, headers: HeaderPairs | None) -> dict[str, str]:
    """Why a record fits no kind of its topic, by kind; empty where it fits one. ``topic`` without prefix."""
    found = {}
    for kind, form in record_forms(topic, key, value, headers).items():
        error = next(_validator(topic, kind).iter_errors(form), None)
        if error is None:
            return {}
        found[kind] = f"{'/'.join(map(str, error.instance_path))}: {error.message}"
    return found


def assert_fits(full_topic: str, key: bytes | None, value: bytes | None, headers: HeaderPairs | None) -> None:
    """Of a topic that has a contract; others are the tests' own."""
    topic = full_topic.partition(".")[2]
    if topic in KINDS and (found := misfits(topic, key, value, headers)):
        raise AssertionError(f"a record of {full_topic} breaks its contract: {found}")


@cache
def _validator(topic: str, kind: str) -> Any:
    schema = {**topic_schema(topic), "$ref": f"#/$defs/{kind}"}
    del schema["anyOf"]
    return jsonschema_rs.validator_for(schema)
