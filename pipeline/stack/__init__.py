"""Real Kafka and PostgreSQL from installed wheels and a locked jar list.

Start at `embedded.EmbeddedStack` (the servers, for code) or `supervisor` (`outrider up`). This file
imports nothing, since the guard process loads the package and must stay small.
"""
