"""Fixtures for all tests; what each gives is said in its module under tests/fixtures."""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
import structlog

pytest_plugins = (
    "tests.fixtures.servers",
    "tests.fixtures.databases",
    "tests.fixtures.kafka",
    "tests.fixtures.components",
)

# What tests start and ask is on this machine: a proxy is for what is fetched.
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: commands that the
# tests interrupt would never hear of it. A signal with a handler is back to its default in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is a property of the machine.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")


@pytest.fixture(autouse=True)
def log_configuration() -> Iterator[None]:
    """A program that a test runs in its own process may turn the log to a stream that ends with the test."""
    yield
    structlog.reset_defaults()
