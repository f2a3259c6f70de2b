"""Domains as the types at their bottom."""

from __future__ import annotations

from connectors.postgres.domains import _OIDS, Domains
from connectors.postgres.pgoutput import Column, Relation, Type
from connectors.postgres.values import BinaryUnsupportedError, codec_of

DOMAIN, ENUM = 20_001, 20_002


def relation(*oids: int) -> Relation:
    return Relation(7, "public", "t", "d", tuple(Column(f"c{oid}", oid, -1, False) for oid in oids))


def test_a_domain_is_read_as_its_type_from_its_description_on() -> None:
    domains = Domains()
    assert domains.resolve(relation(DOMAIN, 25)) == relation(DOMAIN, 25)
    domains.learn(Type(DOMAIN, "pg_catalog", "numeric"))
    domains.learn(Type(ENUM, "public", "mood"))
    assert [column.type_oid for column in domains.resolve(relation(DOMAIN, ENUM, 25)).columns] == [1700, ENUM, 25]


def test_an_oid_that_comes_to_mean_another_type_is_forgotten() -> None:
    domains = Domains()
    domains.learn(Type(DOMAIN, "pg_catalog", "numeric"))
    domains.learn(Type(DOMAIN, "public", "numeric"))
    assert domains.resolve(relation(DOMAIN)) == relation(DOMAIN)
    domains.learn(Type(DOMAIN, "pg_catalog", "inet"))
    assert domains.resolve(relation(DOMAIN)) == relation(DOMAIN)


def test_every_type_that_a_domain_may_be_made_of_has_a_binary_form() -> None:
    for name, oid in _OIDS.items():
        try:
            codec_of(oid).text(b"")
        except BinaryUnsupportedError:
            raise AssertionError(name) from None
        except ValueError:
            pass
