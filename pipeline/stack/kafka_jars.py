"""Which jars make a broker, a Connect worker and Debezium's plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pipeline.stack.locked_jars import JarList, cached_jars

KAFKA: Final = JarList(name="kafka", title="Apache Kafka")
CONNECT: Final = JarList(name="connect", title="Kafka Connect")
# Only what a worker lacks: a plugin finds the rest through the class loader of its worker.
DEBEZIUM: Final = JarList(name="debezium", title="Debezium")


def kafka_class_path() -> list[Path]:
    """The broker's jars. Raises StackError when one cannot be had."""
    return cached_jars(KAFKA)


def connect_class_path() -> list[Path]:
    """A Connect worker's jars. Raises StackError when one cannot be had."""
    return cached_jars(CONNECT)


def debezium_plugin() -> Path:
    """The folder of Debezium's PostgreSQL connector. Raises StackError when a jar cannot be had."""
    return cached_jars(DEBEZIUM)[0].parent
