"""What breaks readers of the released contracts, and what does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topics import contract_release, contract_released
from topics.contract import topic_schema
from topics.contract_compatibility import contract_changes, topic_changes
from topics.contract_released import current_contracts, released_contracts, write_contracts

Change = Callable[[dict[str, Any]], Any]


def fields(schema: dict[str, Any], struct: str = "Attempt") -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][struct]["properties"]
    return found


def required(schema: dict[str, Any], struct: str = "Attempt") -> list[str]:
    found: list[str] = schema["$defs"][struct]["required"]
    return found


BREAKING: dict[str, Change] = {
    "a field is gone": lambda s: fields(s).pop("outcome"),
    "a field is a number now": lambda s: fields(s).update(event_id={"type": "integer"}),
    "a field may be null now": lambda s: fields(s).update(event_id={"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "a field is never null any more": lambda s: fields(s).update(status={"type": "integer"}),
    "items are numbers now": lambda s: fields(s).update(key_ids={"type": "array", "items": {"type": "integer"}}),
    "values of an object are numbers now": lambda s: fields(s)["response_headers"]["anyOf"][0].update(
        additionalProperties={"type": "integer"}
    ),
    "bytes are written otherwise": lambda s: fields(s)["payload_sha256"].update(contentEncoding="base16"),
    "a field must be there now": lambda s: required(s).append("dns_seconds"),
    "a field may be missing now": lambda s: required(s).remove("event_id"),
    "a new field that must be there": lambda s: (
        fields(s).update(tenant={"type": "string"}),
        required(s).append("tenant"),
    ),
    "a word is gone": lambda s: fields(s)["outcome"]["enum"].remove("gone"),
    "a list is closed": lambda s: fields(s)["worker_id"].update(enum=["a"]),
    "a list is open": lambda s: fields(s)["outcome"].pop("enum"),
    "a header is gone": lambda s: fields(s, "AttemptHeaders").pop("result"),
    "a header has another form": lambda s: fields(s, "AttemptHeaders")["id"].update(pattern="^x"),
    "a header may be missing": lambda s: required(s, "AttemptHeaders").remove("result"),
    "the key is shorter": lambda s: fields(s, "attempt")["key"].update(maxLength=10),
    "the key is an object": lambda s: fields(s, "attempt").update(key={"$ref": "#/$defs/AttemptHeaders"}),
    "records of a kind are gone": lambda s: s.update(anyOf=[]),
}
ADDING: dict[str, Change] = {
    "a field": lambda s: fields(s).update(tenant={"type": "string"}),
    "a header": lambda s: fields(s, "AttemptHeaders").update(tenant={"type": "string"}),
    "a word": lambda s: fields(s)["outcome"]["enum"].append("bored"),
    "a kind of record": lambda s: (
        s["$defs"].update(other=copy.deepcopy(s["$defs"]["attempt"])),
        s["anyOf"].append({"$ref": "#/$defs/other"}),
    ),
}
NOTHING: dict[str, Change] = {
    "another description": lambda s: fields(s)["outcome"].update(description="otherwise"),
    "a default that is told": lambda s: fields(s)["dns_seconds"].update(default=0),
    "a struct of another name": lambda s: (
        s["$defs"].update(Effort=s["$defs"].pop("Attempt")),
        fields(s, "attempt").update(value={"$ref": "#/$defs/Effort"}),
    ),
}


def changes_after(change: Change) -> list[bool]:
    """For each change found, whether it breaks."""
    released = topic_schema("attempts")
    current = copy.deepcopy(released)
    change(current)
    return [found.breaks for found in contract_changes("attempts", released, current)]


@pytest.mark.parametrize("name", BREAKING)
def test_what_breaks_readers_is_found(name: str) -> None:
    assert any(changes_after(BREAKING[name]))


@pytest.mark.parametrize("name", ADDING)
def test_what_is_added_passes_and_is_told(name: str) -> None:
    assert changes_after(ADDING[name]) == [False]


@pytest.mark.parametrize("name", NOTHING)
def test_what_binds_nobody_is_no_change(name: str) -> None:
    assert changes_after(NOTHING[name]) == []


def test_a_key_in_a_struct_is_compared_whole() -> None:
    released = topic_schema("connector.control")
    current = copy.deepcopy(released)
    fields(current, "HeldKey")["region"] = {"type": "string"}
    found = contract_changes("connector.control", released, current)
    assert [str(change) for change in found] == [
        "connector.control: held/key has changed, and keys decide the partition"
    ]


def test_topics_come_and_do_not_go() -> None:
    schema = topic_schema("attempts")
    assert [c.breaks for c in topic_changes({"a": schema}, {"a": schema, "b": schema})] == [False]
    assert [c.breaks for c in topic_changes({"a": schema, "b": schema}, {"a": schema})] == [True]


def test_todays_contracts_break_no_reader_of_the_released_ones() -> None:
    released = released_contracts()
    assert released
    assert [str(change) for change in topic_changes(released, current_contracts()) if change.breaks] == []


def test_a_release_writes_what_adds_and_refuses_what_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    older = current_contracts()
    ADDING["a field"](older["attempts"])
    write_contracts({**older, "former": older["attempts"]}, tmp_path)
    monkeypatch.setattr(contract_release, "released_contracts", lambda: released_contracts(tmp_path))
    monkeypatch.setattr(contract_release, "write_contracts", lambda contracts: write_contracts(contracts, tmp_path))
    assert contract_release.main([]) == 1
    assert "breaks readers: attempts: attempt/value/tenant is gone" in capsys.readouterr().out
    assert released_contracts(tmp_path) == {**older, "former": older["attempts"]}
    assert contract_release.main(["--breaking"]) == 0
    assert released_contracts(tmp_path) == current_contracts()
    assert contract_release.main([]) == 0
    assert contract_release.main(["--what"]) == 2


def test_a_released_contract_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / f"attempts{contract_released.SUFFIX}").write_text("{")
    with pytest.raises(ValueError, match=r"attempts\.schema\.json cannot be read"):
        released_contracts(tmp_path)
