"""The tables that a stream has described, each with the ways in which its rows become records. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.errors import TransientError
from connectors.postgres.pgoutput import Delete, Relation, Update
from connectors.router import BoundRoute, Router
from connectors.unrolled import RowReader, unrolled_reader


@dataclass(frozen=True, slots=True)
class Table:
    """A routed table: how its rows become records, in general and, for usual inserts, in the short way."""

    route: BoundRoute
    topic: str
    read: RowReader | None


class Tables:
    """Known by their oid as it is sent, so that nothing is decoded to find one.

    A table is bound by the first row that is to be published: rows that are only skipped may have a shape that the
    configuration does not know any more.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._relations: dict[bytes, Relation] = {}
        self._bound: dict[bytes, Table | None] = {}

    def describe(self, relation: Relation) -> None:
        """From here on rows have this shape."""
        oid = relation.oid.to_bytes(4, "big")
        self._relations[oid] = relation
        self._bound.pop(oid, None)

    def of_row(self, oid: bytes) -> Table | None:
        """None where no route takes the table. Raises RouteError, or TransientError for one never described."""
        return self._bound[oid] if oid in self._bound else self._bind(oid)

    def of_change(self, change: Update | Delete) -> Table | None:
        """The same, where its route takes changes of this kind."""
        oid = change.relation_oid.to_bytes(4, "big")
        relation = self._relations.get(oid)
        if relation is None or not self._router.takes(relation, change):
            return None
        return self.of_row(oid)

    def _bind(self, oid: bytes) -> Table | None:
        relation = self._relations.get(oid)
        if relation is None:
            raise TransientError(
                f"PostgreSQL sent a row of a table that it had not described ({int.from_bytes(oid, 'big')})"
            )
        route = self._router.bind(relation)
        table = None if route is None else Table(route, route.topic, unrolled_reader(route.route, relation))
        self._bound[oid] = table
        return table
