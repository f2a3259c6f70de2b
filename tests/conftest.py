"""Fixtures for all tests; what each gives is said in its module under tests/fixtures."""

pytest_plugins = (
    "tests.fixtures.servers",
    "tests.fixtures.databases",
    "tests.fixtures.kafka",
    "tests.fixtures.components",
)
