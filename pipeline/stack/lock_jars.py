"""Renews the locked jar lists: `python -m pipeline.stack.lock_jars`.

Resolves the broker, the Connect worker and Debezium's plugin with jgo's Python resolver, downloads
every jar and writes coordinates, sizes and checksums. Needed only to move to another version.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection
from pathlib import Path

from jgo.maven import Artifact, MavenContext, PythonResolver
from jgo.parse import Coordinate

from pipeline.stack.kafka_jars import CONNECT, DEBEZIUM, KAFKA
from pipeline.stack.locked_jars import JarList, LockedJar, format_lock

BROKER = ("org.apache.kafka", "kafka_2.13", "4.4.0")
# The release that the plugin is built for: on Connect 4.4 it misses a class of Kafka's that has moved.
WORKER = ("org.apache.kafka", "connect-runtime", "4.3.0")
PLUGIN = ("io.debezium", "debezium-connector-postgres", "3.6.1.Final")
# Kafka brings log4j-core but no binding for SLF4J 1.7: without it the broker logs nothing. It is
# not resolved together with the broker, because jgo takes the parent POM of every root for a bill
# of materials, and log4j's would put a kafka-clients 3.9 under a broker 4.4.
LOG_BINDING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.5")
# What the binding needs, and Connect does not bring.
LOG_CORE = [("org.apache.logging.log4j", artifact, "2.25.5") for artifact in ("log4j-api", "log4j-core")]


def main() -> None:
    """Write the lock files anew."""
    with tempfile.TemporaryDirectory(prefix="outrider-lock-") as scratch:
        context = MavenContext(resolver=PythonResolver(), repo_cache=Path(scratch))
        broker = [*_resolve(context, BROKER), _artifact(context, LOG_BINDING)]
        worker = [*_resolve(context, WORKER), *(_artifact(context, log) for log in [LOG_BINDING, *LOG_CORE])]
        plugin = _less(_resolve(context, PLUGIN), worker)
        _write(KAFKA, broker)
        _write(CONNECT, worker)
        _write(DEBEZIUM, plugin)


def _resolve(context: MavenContext, coordinate: tuple[str, str, str]) -> list[Artifact]:
    roots, transitive = context.resolver.resolve([context.create_dependency(Coordinate(*coordinate, scope="compile"))])
    return [dependency.artifact for dependency in [*roots, *transitive]]


def _artifact(context: MavenContext, coordinate: tuple[str, str, str]) -> Artifact:
    return context.create_dependency(Coordinate(*coordinate, scope="compile")).artifact


def _less(artifacts: Collection[Artifact], present: Collection[Artifact]) -> list[Artifact]:
    """Without what is there already, in whatever version: a plugin must not bring another Kafka."""
    names = {(artifact.groupId, artifact.artifactId) for artifact in present}
    return [artifact for artifact in artifacts if (artifact.groupId, artifact.artifactId) not in names]


def _write(jar_list: JarList, artifacts: Collection[Artifact]) -> None:
    jar_list.file.write_text(format_lock(map(_locked, artifacts)), encoding="utf-8")


def _locked(artifact: Artifact) -> LockedJar:
    content = artifact.resolve().read_bytes()
    return LockedJar(
        group=artifact.groupId,
        artifact=artifact.artifactId,
        version=artifact.version,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


if __name__ == "__main__":
    main()
