"""What has changed between a released contract and the one of today, for those who read. Pure.

Kafka keeps records for weeks, so readers meet old and new ones side by side, and read with code that knows either
contract. Passed: another field, header, word of an ``enum`` or kind of record, and other descriptions. Broken: what is
gone, has another type, or is asked of records that lie there without it; and each change of a key, which decides the
partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

# They explain, and bind nobody.
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$defs"})
_COMPARED_APART = frozenset({"properties", "required", "enum", "items", "prefixItems", "additionalProperties"})


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One thing that is not as released. ``place``: kind of record, part and field, with slashes between."""

    topic: str
    place: str
    what: str
    breaks: bool

    def __str__(self) -> str:
        return f"{self.topic}: {self.place} {self.what}"


def contract_changes(topic: str, released: Schema, current: Schema) -> list[Change]:
    """Every change of one topic's contract, in the order of places. Both schemas as ``topic_schema`` makes them."""
    comparison = _Comparison(topic, released.get("$defs", {}), current.get("$defs", {}))
    return sorted(set(comparison.kinds(_kinds(released), _kinds(current))))


def topic_changes(released: Mapping[str, Schema], current: Mapping[str, Schema]) -> list[Change]:
    """The same for all topics: one that is gone breaks its readers, a new one nobody."""
    changes = []
    for topic in sorted(released.keys() | current.keys()):
        if topic not in current:
            changes.append(Change(topic, "topic", "has no contract any more", breaks=True))
        elif topic not in released:
            changes.append(Change(topic, "topic", "is new", breaks=False))
        else:
            changes += contract_changes(topic, released[topic], current[topic])
    return changes


def _kinds(schema: Schema) -> dict[str, Schema]:
    return {branch["$ref"].rpartition("/")[2]: branch for branch in schema["anyOf"]}


@dataclass(frozen=True, slots=True)
class _Comparison:
    topic: str
    released: Schema
    current: Schema

    def kinds(self, released: Mapping[str, Schema], current: Mapping[str, Schema]) -> Iterator[Change]:
        for name in current.keys() - released.keys():
            yield self._change(name, "is a new kind of record", breaks=False)
        for name in released.keys() - current.keys():
            yield self._change(name, "is not written any more", breaks=True)
        for name in released.keys() & current.keys():
            old, new = _resolved(released[name], self.released), _resolved(current[name], self.current)
            parts = old["properties"], new["properties"]
            yield from self._same(f"{name}/key", parts[0]["key"], parts[1]["key"])
            yield from self._compare(f"{name}/headers", parts[0]["headers"], parts[1]["headers"])
            yield from self._compare(f"{name}/value", parts[0]["value"], parts[1]["value"])

    def _same(self, place: str, released: Schema, current: Schema) -> Iterator[Change]:
        if _bare(released, self.released) != _bare(current, self.current):
            yield self._change(place, "has changed, and keys decide the partition", breaks=True)

    def _compare(self, place: str, released: Schema, current: Schema) -> Iterator[Change]:
        old, new = _branches(released, self.released), _branches(current, self.current)
        if old.keys() != new.keys():
            types = f"{' or '.join(sorted(old))} became {' or '.join(sorted(new))}"
            yield self._change(place, f"has another type: {types}", breaks=True)
            return
        for name, before in old.items():
            yield from self._compare_branch(place, before, new[name])

    def _compare_branch(self, place: str, old: Schema, new: Schema) -> Iterator[Change]:
        bounds = [
            {name: value for name, value in schema.items() if name not in _NOTES | _COMPARED_APART}
            for schema in (old, new)
        ]
        for name in sorted(bounds[0].keys() | bounds[1].keys()):
            if bounds[0].get(name) != bounds[1].get(name):
                what = f"has another {name}: {bounds[0].get(name)!r} became {bounds[1].get(name)!r}"
                yield self._change(place, what, breaks=True)
        yield from self._words(place, old.get("enum"), new.get("enum"))
        yield from self._fields(place, old, new)
        for name in ("items", "additionalProperties"):
            before, after = old.get(name, True), new.get(name, True)
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                yield from self._compare(f"{place}/*", before, after)
            elif before != after:
                yield self._change(place, f"holds other things: {before!r} became {after!r}", breaks=True)

    def _words(self, place: str, old: list[str] | None, new: list[str] | None) -> Iterator[Change]:
        if old is None or new is None:
            if old != new:
                yield self._change(
                    place, f"is {'a closed list now' if old is None else 'no closed list any more'}", breaks=True
                )
            return
        for word in old:
            if word not in new:
                yield self._change(place, f"has lost the word {word!r}", breaks=True)
        for word in new:
            if word not in old:
                yield self._change(place, f"has a new word {word!r}", breaks=False)

    def _fields(self, place: str, old: Schema, new: Schema) -> Iterator[Change]:
        before, after = old.get("properties", {}), new.get("properties", {})
        must, must_now = set(old.get("required", ())), set(new.get("required", ()))
        for name in before.keys() - after.keys():
            yield self._change(f"{place}/{name}", "is gone", breaks=True)
        for name in after.keys() - before.keys():
            if name in must_now:
                yield self._change(f"{place}/{name}", "is new and required, and older records lack it", breaks=True)
            else:
                yield self._change(f"{place}/{name}", "is new", breaks=False)
        for name in before.keys() & after.keys():
            if name in must_now - must:
                yield self._change(f"{place}/{name}", "is required now, and older records may lack it", breaks=True)
            if name in must - must_now:
                yield self._change(f"{place}/{name}", "may be missing now", breaks=True)
            yield from self._compare(f"{place}/{name}", before[name], after[name])

    def _change(self, place: str, what: str, *, breaks: bool) -> Change:
        return Change(self.topic, place, what, breaks)


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    """The schema itself, where it is a reference. Our structs are no recursive ones."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def _branches(schema: Schema, definitions: Schema) -> dict[str, Schema]:
    """What it may be, by type: null, string, object …; a list of words without a type is of strings."""
    schema = _resolved(schema, definitions)
    if "anyOf" in schema:
        parts = [_branches(part, definitions) for part in schema["anyOf"]]
        return {name: branch for part in parts for name, branch in part.items()}
    types = schema.get("type", "string" if "enum" in schema else "anything")
    rest = {name: value for name, value in schema.items() if name != "type"}
    return dict.fromkeys([types] if isinstance(types, str) else types, rest)


def _bare(schema: Any, definitions: Schema) -> Any:
    """All that binds, without references and notes."""
    if isinstance(schema, Mapping):
        schema = _resolved(schema, definitions)
        if "properties" in schema:
            fields = {name: _bare(field, definitions) for name, field in schema["properties"].items()}
            return {"properties": fields, "required": sorted(schema.get("required", ()))}
        return {name: _bare(value, definitions) for name, value in schema.items() if name not in _NOTES}
    return [_bare(value, definitions) for value in schema] if isinstance(schema, list) else schema
