"""Fixtures for all tests; what each gives is said in its module under tests/fixtures."""

import signal

pytest_plugins = (
    "tests.fixtures.servers",
    "tests.fixtures.databases",
    "tests.fixtures.kafka",
    "tests.fixtures.components",
)

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: commands that the
# tests interrupt would never hear of it. A signal with a handler is back to its default in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
