"""Renews the locked jar list: `python -m pipeline.stack.lock_kafka_jars`.

Resolves the broker and its log binding with jgo's Python resolver, downloads every jar and writes
coordinates, sizes and checksums to kafka_jars.lock. Needed only to move to another Kafka.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from jgo.maven import Artifact, MavenContext, PythonResolver
from jgo.parse import Coordinate

from pipeline.stack.kafka_jars import LOCK_FILE, LockedJar, format_lock

BROKER = ("org.apache.kafka", "kafka_2.13", "4.4.0")
# Kafka brings log4j-core but no binding for SLF4J 1.7: without it the broker logs nothing. It is
# not resolved together with the broker, because jgo takes the parent POM of every root for a bill
# of materials, and log4j's would put a kafka-clients 3.9 under a broker 4.4.
LOG_BINDING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.5")


def main() -> None:
    """Write the lock file anew."""
    with tempfile.TemporaryDirectory(prefix="outrider-lock-") as scratch:
        context = MavenContext(resolver=PythonResolver(), repo_cache=Path(scratch))
        broker = context.create_dependency(Coordinate(*BROKER, scope="compile"))
        roots, transitive = context.resolver.resolve([broker])
        binding = context.create_dependency(Coordinate(*LOG_BINDING, scope="compile"))
        jars = [_locked(dependency.artifact) for dependency in [*roots, *transitive, binding]]
    LOCK_FILE.write_text(format_lock(jars), encoding="utf-8")


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
