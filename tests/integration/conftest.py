"""A database for the tests of one module, for those that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.fixtures.databases import fresh_database, make_partitions_of_today


@pytest.fixture(scope="module")
def module_database(postgres_dsn: str, migrated_template: str) -> Iterator[str]:
    """Superuser's DSN of a database with every migration applied, shared by the module's tests."""
    with fresh_database(postgres_dsn, template=migrated_template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            make_partitions_of_today(connection)
        yield dsn


@pytest.fixture
def rolled_back(module_database: str) -> Iterator[psycopg.Connection]:
    """A connection in a transaction that is rolled back after the test. Wrap what may fail in ``transaction()``."""
    with psycopg.connect(module_database) as connection:
        yield connection
        connection.rollback()
