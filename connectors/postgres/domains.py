"""Domains as the built-in types that they are made of. Pure.

The stream describes a column of a domain by the domain's own oid. Before it does so, it sends a Type message for that
oid, which carries the name of the type at the bottom of the domain: with it, the column's binary form is known.
"""

from __future__ import annotations

from typing import Final

import msgspec

from connectors.postgres.pgoutput import Relation, Type

# The built-in types that values.py knows, by the names that the stream uses.
_OIDS: Final = {
    "bool": 16, "bytea": 17, "char": 18, "name": 19, "int8": 20, "int2": 21, "int4": 23, "text": 25, "oid": 26,
    "json": 114, "float4": 700, "float8": 701, "bpchar": 1042, "varchar": 1043, "date": 1082, "timestamp": 1114,
    "timestamptz": 1184, "numeric": 1700, "uuid": 2950, "jsonb": 3802,
    "_bool": 1000, "_bytea": 1001, "_char": 1002, "_name": 1003, "_int2": 1005, "_int4": 1007, "_text": 1009,
    "_bpchar": 1014, "_varchar": 1015, "_int8": 1016, "_float4": 1021, "_float8": 1022, "_oid": 1028,
    "_timestamp": 1115, "_date": 1182, "_timestamptz": 1185, "_json": 199, "_numeric": 1231, "_uuid": 2951,
    "_jsonb": 3807,
}  # fmt: skip


class Domains:
    """What one stream has told of its domains."""

    def __init__(self) -> None:
        self._bases: dict[int, int] = {}

    def learn(self, described: Type) -> None:
        """Keep what a Type message tells; one of a type that is not built in tells nothing."""
        base = _OIDS.get(described.name) if described.namespace == "pg_catalog" else None
        if base is None:
            self._bases.pop(described.oid, None)
        else:
            self._bases[described.oid] = base

    def resolve(self, relation: Relation) -> Relation:
        """The relation with the domains that are known replaced by their types."""
        columns = tuple(
            msgspec.structs.replace(column, type_oid=self._bases.get(column.type_oid, column.type_oid))
            for column in relation.columns
        )
        return msgspec.structs.replace(relation, columns=columns)
