"""Real Kafka and PostgreSQL from installed wheels and a locked jar list."""

from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.errors import StackError

__all__ = ["EmbeddedStack", "StackError"]
