"""The integration tests' shared database, for acceptance tests that leave it as it was."""

from __future__ import annotations

from tests.integration.conftest import module_database, rolled_back

__all__ = ["module_database", "rolled_back"]
