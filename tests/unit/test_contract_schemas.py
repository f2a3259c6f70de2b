"""The contracts are generated, are valid, and describe what the program writes."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest

from connectors import control, quarantine
from connectors.kafka.position import Position, encode_position, position_key
from pipeline.cli.run_connector import ATTEMPT_COLUMNS, outbox_routes
from pipeline.core.classify import Outcome
from pipeline.settings import load_settings
from tests.support.contracts import misfits
from topics import contract_wire as wire
from topics.codecs import Attempt, Dispatch
from topics.contract import KINDS, topic_schema
from topics.contract_asyncapi import asyncapi
from topics.declarations import declare_topics

ASYNCAPI_SCHEMA = Path(__file__).resolve().parents[1] / "support" / "asyncapi" / "3.0.0.json.gz"
MIGRATIONS = Path(__file__).resolve().parents[2] / "pipeline" / "ledger" / "migrations"
DECLARED = {
    declaration.name.removeprefix("p."): declaration
    for declaration in declare_topics(
        prefix="p", dispatch_partitions=3, attempts_partitions=2, replication_factor=1, min_insync_replicas=1
    )
}


def words(annotation: Any) -> list[str]:
    """The closed list of a field's type."""
    found: list[str] = msgspec.json.schema(annotation)["enum"]
    return found


def words_of_check(column: str) -> list[str]:
    """The last list that a migration allows in a column."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(MIGRATIONS.glob("*.up.sql"))]
    lists = re.findall(rf"check \({column} in \(([^)]*)\)\)", "".join(texts))
    return re.findall(r"'([a-z_]+)'", lists[-1])


def test_every_declared_topic_has_a_contract() -> None:
    assert KINDS.keys() == DECLARED.keys()


@pytest.mark.parametrize("topic", KINDS)
def test_a_schema_is_valid_json_schema(topic: str) -> None:
    schema = json.loads(json.dumps(topic_schema(topic)))
    assert jsonschema_rs.meta.is_valid(schema)
    jsonschema_rs.validator_for(schema)


def test_closed_lists_are_those_of_the_program_and_its_tables() -> None:
    assert sorted(words(wire.AttemptOutcome)) == sorted([*Outcome, "lease_expired"])
    assert sorted(words(wire.DispatchReason)) == sorted(words_of_check("reason"))
    assert sorted(words(wire.AttemptResult)) == sorted(words_of_check("result"))
    for struct, name in ((wire.SettledMark, "state"), (wire.MarkHeaders, "quarantine_mark")):
        assert sorted(words(_field(struct, name))) == sorted(get_args(quarantine.MarkState))


def test_what_the_connector_is_told_to_write_is_what_the_contracts_promise() -> None:
    dispatch, attempts = outbox_routes(load_settings())
    assert {header.name for header in dispatch.headers} == set(wire.DispatchHeaders.__struct_fields__)
    assert {header.name for header in attempts.headers} == set(wire.AttemptHeaders.__struct_fields__)
    assert Attempt.__struct_fields__ == ATTEMPT_COLUMNS
    read_apart = {"destination_id", "message_id", "payload"}
    assert set(Dispatch.__struct_fields__) - read_apart == set(wire.DispatchHeaders.__struct_fields__) - {"id"}
    for topic in ("dispatch", "attempts"):
        (kind,) = KINDS[topic]
        assert kind.headers.__struct_fields__ == tuple(DECLARED[topic].contract.headers)


@pytest.mark.parametrize(
    ("written", "described"),
    [
        (Position, wire.SlotPosition),
        (control.Pause, wire.PauseWish),
        (control.Release, wire.ReleaseWish),
        (control.Selection, wire.ReleaseSelection),
        (control.Outcome, wire.ReleaseOutcome),
        (control.Refusal, wire.ReleaseRefusal),
        (control.Held, wire.HeldReason),
        (quarantine.QuarantinedRow, wire.RefusedRow),
        (quarantine.Mark, wire.SettledMark),
    ],
)
def test_the_connectors_own_records_are_described_field_by_field(
    written: type[msgspec.Struct], described: type[msgspec.Struct]
) -> None:
    def fields(struct: type[msgspec.Struct]) -> list[tuple[str, bool, object]]:
        return [(field.name, field.required, field.default) for field in msgspec.structs.fields(struct)]

    assert fields(written) == fields(described)


def test_records_of_the_connectors_own_topics_fit() -> None:
    position = Position(system_id="7", timeline=1, database="d", slot="s", lsn=2**60, row=0, as_of_us=5)
    assert misfits("connector.positions", position_key("d", "s"), encode_position(position), []) == {}
    assert misfits("connector.positions", position_key("d", "s"), None, []) == {}
    for kind, value in (
        ("pause", control.Pause(is_paused=True, operator="o", reason="r", at="2026-11-30T00:00:00+00:00")),
        ("held", control.Held(reason="r", row_id=None, lsn="0/1")),
        ("release", control.Release(selection=control.Selection(entries=(1,)), operator="o", reason="r", at="t")),
    ):
        subject = control.Subject(
            database="d",
            slot="s",
            kind=kind,  # type: ignore[arg-type]
            release_id="id" if kind == "release" else "",
            table="t" if kind == "held" else "",
            key=b"\xff" if kind == "held" else b"",
        )
        key = control.encode_subject(subject)
        assert misfits("connector.control", key, control.encode_value(value), []) == {}
        assert misfits("connector.control", key, None, []) == {}
        assert misfits("connector.control", key, b'{"something":"else"}', []).keys() == {"pause", "release", "held"}


@pytest.mark.parametrize(
    "change",
    [
        {"dispatch_seq": None},
        {"dispatch_seq": b"x"},
        {"delivery_id": b""},
        {"reason": b"whim"},
        {"key": b""},
        {"value": None},
    ],
)
def test_a_record_that_breaks_its_contract_is_found(change: dict[str, bytes | None]) -> None:
    parts: dict[str, bytes | None] = {
        "key": b"acme",
        "value": b"\xff",
        "id": b"m",
        "delivery_id": b"d",
        "dispatch_seq": b"1",
    }
    headers = {"id", "delivery_id", "dispatch_seq", "reason"}

    def found(record: dict[str, bytes | None]) -> dict[str, str]:
        pairs = [(name, record[name]) for name in sorted(headers & record.keys())]
        return misfits("dispatch", record["key"], record["value"], pairs)

    assert found(parts) == {}
    assert found(parts | change)


def test_the_asyncapi_document_has_every_topic_and_refers_to_nothing_that_is_missing() -> None:
    document = json.loads(json.dumps(asyncapi(list(DECLARED.items()), version="1.2.3")))
    assert (document["asyncapi"], document["info"]["version"]) == ("3.0.0", "1.2.3")
    assert document["channels"].keys() == DECLARED.keys()
    assert document["channels"]["dispatch"]["address"] == "p.dispatch"
    kafka = document["channels"]["dispatch"]["bindings"]["kafka"]
    assert (kafka["partitions"], kafka["topicConfiguration"]["retention.ms"]) == (3, 604_800_000)
    references = re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))
    assert references
    for reference in references:
        place: Any = document
        for name in reference.split("/"):
            place = place[name]


def test_the_asyncapi_document_is_one_by_asyncapis_own_schema() -> None:
    schema = json.loads(gzip.decompress(ASYNCAPI_SCHEMA.read_bytes()))
    validator = jsonschema_rs.validator_for(schema)
    document = json.loads(json.dumps(asyncapi(list(DECLARED.items()), version="1.2.3")))
    assert [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(document)] == []
    # It looks into channels, operations, messages and bindings.
    for place, wrong in (
        (document["channels"]["dispatch"], {"adress": "p.dispatch"}),
        (document["channels"]["dispatch"]["bindings"]["kafka"], {"partitions": "three"}),
        (document["operations"]["publish.dispatch"], {"action": "publish"}),
        (document["components"]["messages"]["pause"], {"contentTyp": "application/json"}),
        (document["components"]["schemas"]["PauseWish"], {"required": "all"}),
    ):
        before = dict(place)
        place.update(wrong)
        assert not validator.is_valid(document), wrong
        place.clear()
        place.update(before)
    assert validator.is_valid(document)


def _field(struct: type[msgspec.Struct], name: str) -> Any:
    return next(field.type for field in msgspec.structs.fields(struct) if field.name == name)
